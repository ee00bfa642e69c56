"""`growctl prepare` describes the dataset that it prepared."""

import json
from pathlib import Path

from stages.data.corpus import is_validation
from tests.growctl.runs import run_here


def test_prepare_always_reports_the_documents_left_out_of_train(tmp_path: Path) -> None:
    source = tmp_path / "texts"
    source.mkdir()
    names = [f"{number}.txt" for number in range(60)]
    for name in names:
        (source / name).write_text(f"the text of {name}")
    kept = next(name for name in names if is_validation(name, 0.2))
    for name in [name for name in names if not is_validation(name, 0.2)][:2]:
        (source / name).write_text(f"the text of {kept}")
    values = (f"data.source={source}", "data.vocab_size=300", "data.validation_fraction=0.2")
    for _ in range(2):
        out, err = run_here("prepare", "quickstart", *values, "--runs-dir", tmp_path / "runs")
        assert "left out of train: 2 documents whose text is also in validation" in out.splitlines()
        assert "\nwarning: Validation has " in err
    out, _ = run_here("prepare", "quickstart", *values, "--runs-dir", tmp_path / "runs", "--json")
    [warning] = json.loads(out)["warnings"]
    assert "fewer than 50 documents and 100,000 tokens" in warning
