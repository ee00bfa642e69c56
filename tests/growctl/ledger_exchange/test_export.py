"""Ledgers as tables for other programs."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from growctl.ledger.file import TABLES
from growctl.ledger.ledger import Ledger
from growctl.ledger_exchange import export
from growctl.ledger_exchange.export import export_ledgers
from tests.growctl.invented_runs import LARGE, SMALL, FakeRun, ladder
from tests.growctl.runs import run_here


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two runs, one of them killed once."""
    runs = tmp_path / "runs"
    ladder(runs, name="one")
    FakeRun(runs, "two", [SMALL, LARGE]).train(0, 1.42, killed_at=300)
    return runs


def rows_of(folder: Path, table: str, to: str) -> list[dict[str, Any]]:
    file = folder / f"{table}.{to}"
    if to == "json":
        return list(json.loads(file.read_text()))
    if to == "csv":
        with file.open(newline="") as text:
            return list(csv.DictReader(text))
    import pyarrow.parquet

    return list(pyarrow.parquet.read_table(file).to_pylist())


@pytest.mark.parametrize("to", ["csv", "json", "parquet"])
def test_the_tables_hold_every_row_of_every_ledger(runs: Path, tmp_path: Path, to: Any) -> None:
    if to == "parquet":
        pytest.importorskip("pyarrow")
    document = export_ledgers(runs, [], to, tmp_path / "tables")
    assert {path.name for path in (tmp_path / "tables").iterdir()} == {f"{table}.{to}" for table in TABLES}
    assert document.runs == ("one", "two")
    for name in document.runs:
        with Ledger.open(runs / name / "ledger.db", read_only=True) as ledger:
            for table, (columns, rows) in ledger.tables().items():
                found = [row for row in rows_of(tmp_path / "tables", table, to) if row["run"] == name]
                assert len(found) == len(rows)
                if to != "csv":
                    assert found == [{"run": name} | row for row in rows]
                if found:
                    assert list(found[0]) == ["run", *columns]


def test_work_rows_tell_kept_from_replayed_work(runs: Path, tmp_path: Path) -> None:
    export_ledgers(runs, ["two"], "json", tmp_path / "tables")
    work = rows_of(tmp_path / "tables", "work", "json")
    with Ledger.open(runs / "two/ledger.db", read_only=True) as ledger:
        cost = ledger.stage_cost("0-800k")
    kept = sum(row["device_seconds"] * row["kept"] for row in work)
    assert kept == pytest.approx(cost.kept.device_seconds)
    assert kept < sum(row["device_seconds"] for row in work) == pytest.approx(cost.spent.device_seconds)


def test_the_command_lists_its_files(runs: Path, tmp_path: Path) -> None:
    tables = tmp_path / "tables"
    command = ["ledger", "export", "one", "--to", "csv", "--output", str(tables), "--runs-dir", str(runs)]
    out = run_here(*command)[0]
    assert f"{tables / 'stage.csv'}: 2 rows\n" in out
    _, err = run_here(*command, expect=2)
    assert f"{tables} already exists" in err
    out = run_here(*command[:-3], str(tmp_path / "again"), *command[-2:], "--json")[0]
    assert json.loads(out)["tables"]["stage"] == {"file": "stage.csv", "num_rows": 2}


def test_an_unknown_run_leaves_nothing_behind(runs: Path, tmp_path: Path) -> None:
    command = ["ledger", "export", "onee", "--to", "json", "--output", str(tmp_path / "tables")]
    _, err = run_here(*command, "--runs-dir", str(runs), expect=2)
    assert "no run 'onee'" in err
    assert "one" in err
    assert not (tmp_path / "tables").exists()


def test_parquet_without_pyarrow_says_what_to_install(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "find_spec", lambda name: None)
    command = ["ledger", "export", "--to", "parquet", "--output", str(tmp_path / "tables"), "--runs-dir", str(runs)]
    _, err = run_here(*command, expect=2)
    assert err == "growctl: --to parquet needs pyarrow; install it with `pip install 'growctl[parquet]'`\n"
    assert not (tmp_path / "tables").exists()
