"""Ledgers join the runs directory of another machine, and their costs become tables for other programs."""

import csv
import json
import shutil
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from growctl.ledger.exchange import import_ledgers
from growctl.ledger.file import LedgerError
from growctl.ledger.ledger import Ledger
from growctl.runs.find import find_runs
from growctl.runs.status import find_status
from growctl.runs_dir import RunPaths
from model.errors import UserError
from tests.growctl.invented_runs import LARGE, SMALL, FakeRun, control, ladder
from tests.growctl.runs import run_here

CONTROL = "quick-control-tokenformer-scratch-1600"


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """The runs directory of this machine, with a ladder."""
    ladder(tmp_path / "here", name="mine")
    return tmp_path / "here"


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """That of another machine, with a ladder and a control of it."""
    with Ledger(ladder(tmp_path / "there", 1.20).path, read_only=True) as ledger:
        control(tmp_path / "there", 1600, 1.25, ladder_id=ledger.run().run_id)
    return tmp_path / "there"


@pytest.mark.slow
def test_the_ledgers_of_two_machines_are_shown_together_and_no_command_resumes_an_imported_one(here: Path, there: Path):
    before = files_of(there)
    out, _ = run_here("ledger", "import", there, "--runs-dir", here, "--json")
    assert [entry["name"] for entry in json.loads(out)["ledgers"]] == ["quick", CONTROL]
    assert json.loads(RunPaths(here / "quick").imported.read_text())["source"] == str(there / "quick/ledger.db")
    assert files_of(there) == before, "the source is not touched"
    runs, theirs = ({run.name: run for run in find_runs(folder)} for folder in (here, there))
    assert set(runs) == {"mine", "quick", CONTROL}
    assert runs["quick"].stages == theirs["quick"].stages
    note = "its ledger was imported from elsewhere, so that it has no checkpoints here"
    assert runs["quick"].notes == (f"{note.capitalize()}.",)
    _, status, of_control = find_status(here)
    assert (status.state, status.resume_command, status.notes) == ("imported", None, (note,))
    assert (of_control.name, of_control.control_of) == (CONTROL, "quick")
    for runs_dir, has_command in ((there, True), (here, False)):
        out, _ = run_here("report", "quick", "--runs-dir", runs_dir)
        assert "The strongest opponent is missing" in out
        assert ("To train what is missing:" in out) is has_command

    imported = files_of(here)
    _, err = run_here("run", "quickstart", "--name", "quick", "--runs-dir", here, expect=2)
    assert err.startswith(f"growctl: {here / 'quick'} exists and is not a growctl run")
    assert files_of(here) == imported
    again = run_here("ledger", "import", there / "quick", "--runs-dir", here)[0]
    assert again == f"quick: imported from {there / 'quick/ledger.db'}\n"


def test_importing_again_brings_a_ledger_up_to_date_and_never_replaces_a_newer_one(here: Path, tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "cluster", "growing", [SMALL, LARGE]).train(0, 1.42)
    old = Path(shutil.copy(run.path, tmp_path / "old.db"))
    for source in (run.path.parent, run.path):
        assert [entry.name for entry in import_ledgers([source], here).ledgers] == ["growing"]
    run.train(1, 1.3, start=1.42)
    import_ledgers([run.path], here)
    assert find_runs(here, ["growing"])[0].final_loss == 1.3
    with pytest.raises(UserError, match="or has rows that this one lacks"):
        import_ledgers([old], here)
    assert find_runs(here, ["growing"])[0].final_loss == 1.3


def test_a_name_that_another_run_has_is_refused_before_anything_is_copied(here: Path, there: Path, tmp_path: Path):
    """Another run here, the run itself, or one of another source."""
    ladder(tmp_path / "third", name="mine")
    ladder(tmp_path / "fourth", name="quick")
    before = files_of(here)
    for sources, name in (([tmp_path / "third"], "mine"), ([here], "mine"), ([there, tmp_path / "fourth"], "quick")):
        with pytest.raises(UserError, match=rf"is another run named '{name}', .*; give a --prefix") as refused:
            import_ledgers(sources, here)
        assert str(sources[-1] / name / "ledger.db") in str(refused.value)
        assert files_of(here) == before


def test_a_prefix_makes_room_and_controls_stay_with_their_own_ladder(here: Path, there: Path) -> None:
    ladder(here, name="quick")
    with pytest.raises(UserError, match=r"no run can be named '\.\./quick': must be letters"):
        import_ledgers([there], here, prefix="../")
    import_ledgers([there], here, prefix="cluster-")
    runs = {run.name: run for run in find_runs(here)}
    assert runs[f"cluster-{CONTROL}"].control_of == "cluster-quick"
    assert {"mine", "quick", "cluster-quick"} < set(runs)


def test_a_changed_row_or_a_source_without_a_ledger_is_refused(here: Path, there: Path, tmp_path: Path) -> None:
    with sqlite3.connect(there / "quick/ledger.db") as connection:
        connection.execute("DROP TRIGGER keeps_on_update")
        connection.execute("UPDATE record SET body = replace(body, '1', '2')")
    before = files_of(here)
    with pytest.raises(LedgerError, match="the ledger is broken"):
        import_ledgers([there], here)
    (tmp_path / "empty").mkdir()
    for source in ("empty", "missing"):
        with pytest.raises(UserError, match=f"{source}: no ledger here; give a ledger.db"):
            import_ledgers([tmp_path / source], here)
    assert files_of(here) == before


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
def test_the_table_holds_all_work_and_tells_kept_from_replayed(runs: Path, tmp_path: Path, suffix: str) -> None:
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
def test_what_cannot_be_exported_leaves_nothing_behind(runs, tmp_path, monkeypatch, name, run, message):
    (tmp_path / "there.csv").touch()
    before = sorted(tmp_path.iterdir())
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    _, err = run_here("ledger", "export", run, "--output", tmp_path / name, "--runs-dir", runs, expect=2)
    assert message in err
    assert sorted(tmp_path.iterdir()) == before
