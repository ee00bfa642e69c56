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
    out = run_here("ledger", "export", "--output", str(file), "--runs-dir", str(runs), "--json")[0]
    rows = rows_of(file)
    assert json.loads(out) == {"path": str(file), "runs": ["one", "two"], "num_rows": len(rows)}
    assert {(row["run"], row["stage"]) for row in rows} == {("one", "0-800k"), ("one", "1-2m"), ("two", "0-800k")}
    work = [row for row in rows if row["run"] == "two"]
    with Ledger(runs / "two/ledger.db", read_only=True) as ledger:
        cost = ledger.stage_cost("0-800k")
    kept = sum(float(row["device_seconds"]) * float(row["kept"]) for row in work)
    assert kept == pytest.approx(cost.kept.device_seconds)
    spent = sum(float(row["device_seconds"]) for row in work)
    assert kept < spent == pytest.approx(cost.spent.device_seconds)


def test_the_command_exports_the_named_runs_to_a_new_file(runs: Path, tmp_path: Path) -> None:
    file = tmp_path / "costs.csv"
    command = ["ledger", "export", "one", "--output", file, "--runs-dir", runs]
    assert run_here(*command)[0] == f"{file}: {len(rows_of(file))} rows\n"
    assert f"{file} already exists" in run_here(*command, expect=2)[1]


@pytest.mark.parametrize(
    ("name", "run", "message"),
    [
        ("costs.csv.gz", "one", "must end in .csv or .parquet"),
        ("costs.csv", "onee", "no run 'onee'"),
        ("costs.parquet", "one", "install it with `pip install 'growctl[parquet]'`"),
    ],
)
def test_what_cannot_be_exported_leaves_nothing_behind(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, run: str, message: str
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    _, err = run_here("ledger", "export", run, "--output", tmp_path / name, "--runs-dir", runs, expect=2)
    assert message in err
    assert not (tmp_path / name).exists()
