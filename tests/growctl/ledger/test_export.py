"""The costs of runs as a table for other programs."""

import csv
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from growctl.ledger.ledger import Ledger
from tests.growctl.invented_runs import LARGE, SMALL, FakeRun, ladder
from tests.growctl.runs import run_here


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two runs, one of them killed once."""
    runs = tmp_path / "runs"
    ladder(runs, name="one")
    FakeRun(runs, "two", [SMALL, LARGE]).train(0, 1.42, killed_at=300)
    return runs


def rows_of(file: Path) -> list[dict[str, Any]]:
    if file.suffix == ".parquet":
        return list(pyarrow.parquet.read_table(file).to_pylist())
    with file.open(newline="") as text:
        return list(csv.DictReader(text))


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_the_table_holds_the_work_of_every_ledger_and_tells_kept_from_replayed_work(
    runs: Path, tmp_path: Path, suffix: str
) -> None:
    file = tmp_path / f"costs{suffix}"
    out = run_here("ledger", "export", "--output", file, "--runs-dir", runs, "--json")[0]
    rows = rows_of(file)
    assert json.loads(out) == {"path": str(file), "runs": ["one", "two"], "num_rows": len(rows)}
    assert {(row["run"], row["stage"]) for row in rows} == {("one", "0-800k"), ("one", "1-2m"), ("two", "0-800k")}
    work = [(float(row["device_seconds"]), float(row["kept"])) for row in rows if row["run"] == "two"]
    with Ledger(runs / "two/ledger.db", read_only=True) as ledger:
        cost = ledger.stage_cost("0-800k")
    assert sum(seconds * kept for seconds, kept in work) == pytest.approx(cost.kept.device_seconds)
    assert sum(seconds for seconds, _ in work) == pytest.approx(cost.spent.device_seconds)
    assert cost.kept.device_seconds < cost.spent.device_seconds


@pytest.mark.parametrize(
    ("name", "run", "message"),
    [
        ("costs.csv.gz", "one", "must end in .csv or .parquet"),
        ("costs.csv", "onee", "no run 'onee'"),
        ("costs.parquet", "one", "install it with `pip install 'growctl[parquet]'`"),
        ("there.csv", "one", "there.csv already exists"),
    ],
)
def test_what_cannot_be_exported_leaves_nothing_behind(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, run: str, message: str
) -> None:
    (tmp_path / "there.csv").touch()
    before = sorted(tmp_path.iterdir())
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    _, err = run_here("ledger", "export", run, "--output", tmp_path / name, "--runs-dir", runs, expect=2)
    assert message in err
    assert sorted(tmp_path.iterdir()) == before
