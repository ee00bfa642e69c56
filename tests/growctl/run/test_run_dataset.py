"""What a run says of its dataset when it is resumed."""

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from growctl.run import dataset as module
from growctl.run.dataset import RunDataset
from growctl.run.screen import Screen
from growctl.runs_dir import RunsPaths
from stages.data.dataset import read_dataset_manifest
from tests.growctl.ladders import ladder


def test_a_resumed_run_warns_that_its_text_has_changed_and_names_the_dataset_it_goes_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("".join(f"line {number} of a text\n" for number in range(9000)))
    schedule = ladder(data={"source": str(text), "vocab_size": 300, "validation_fraction": 0.2})
    said = StringIO()
    run = RunDataset(schedule, tmp_path, Screen(Console(file=said, width=10_000)))
    dataset = run.prepared()
    first = (dataset, read_dataset_manifest(dataset).fingerprint)
    monkeypatch.setattr(module, "first_dataset", lambda ledger, directory: first)

    def resumed() -> str:
        said.truncate(said.seek(0))
        assert run.known(None, RunsPaths(tmp_path).run("s").directory) == dataset  # type: ignore[arg-type]
        return "\n".join(line for line in said.getvalue().splitlines() if "data.source" in line)

    assert resumed() == ""
    text.write_text("another text")
    assert resumed() == (
        f"warning: data.source '{text}' has changed since {dataset} was prepared from it; this run goes on with that "
        "dataset. To train on the text as it is now, start a run with another --name"
    )
    text.unlink()
    assert resumed() == ""
