"""The tables of docs/inspection.md match the results file."""

import json
import re
from pathlib import Path
from typing import Any

from tools import inspection
from tools.tables import NOT_MEASURED

NAMES = ("query", "key", "value", "projection", "ffn")


def row(seed: int, scores: str, kind: str = "checkpoint", **changes: Any) -> dict[str, Any]:
    figures = {
        "seed": seed,
        "kind": kind,
        "scores": scores,
        "loss": 3.14159,
        "gradient_norm": 1.25,
        "spread": 0.123,
        "depth_ratio": 7.95e5,
        "largest_kurtosis": 17.0,
        "gradient_norms": dict.fromkeys(NAMES, 9.25e-6),
        "gains": dict.fromkeys(NAMES, 0.5),
        "num_tokens": 200,
        "num_dead": 50,
        "effective_share": 0.5,
        "training": {"median": 1.0, "largest_over_median": 3.65, "step_to_step": 1.2, "num_rejected": 0},
    }
    return figures | changes


def written(folder: Path, *rows: dict[str, Any]) -> Path:
    machine = {"cpu": "A CPU", "cores": 2, "torch": "2.13.0", "python": "3.11.7"}
    (folder / "score_functions.json").write_text(
        json.dumps({"date": "2026-01-02", "note": None, "machine": machine, "rows": rows})
    )
    return folder


def test_the_page_is_not_stale() -> None:
    page = inspection.PAGE.read_text()
    assert page == inspection.with_tables(page), "run `make docs`"


def test_the_page_has_the_marks_of_every_table_and_no_others() -> None:
    marks = re.findall(r"<!-- ([a-z-]+): `make docs` writes this from benchmarks", inspection.PAGE.read_text())
    assert marks == list(inspection.TABLES)


def test_a_table_without_its_results_says_so(tmp_path) -> None:
    for make in inspection.TABLES.values():
        assert make(tmp_path) == NOT_MEASURED


def test_a_row_holds_every_seed_and_a_transformer_has_no_tokens(tmp_path) -> None:
    linear: dict[str, Any] = {"num_tokens": 0, "num_dead": 0, "effective_share": None}
    results = written(
        tmp_path, row(0, "softmax"), row(0, "linear", **linear), row(1, "softmax", loss=3.2), row(0, "x", "untrained")
    )
    shown = inspection.trained_table(results)
    assert shown.startswith("A CPU, 2 cores; torch 2.13.0, Python 3.11.7; 2026-01-02.\n")
    assert "| `softmax` | 3.14 / 3.20 | 1.2 / 1.2 | 12% / 12% | 8e5 / 8e5 | 3.6 / 3.6 | 1.2 / 1.2 | 17 / 17 |" in shown
    assert shown.splitlines()[-1].endswith("| - | - |")
    assert "`x`" not in shown


def test_the_untrained_models_have_a_table_of_their_own(tmp_path) -> None:
    shown = inspection.untrained_table(written(tmp_path, row(0, "softmax", "untrained"), row(0, "linear")))
    assert "| `softmax` | 1.2 | 9.2e-6 |" in shown
    assert "linear" not in shown
