"""Ledgers of other machines join a runs directory, where report and status show them."""

import json
import shutil
import sqlite3
from pathlib import Path

import pytest

from growctl.ledger.exchange import import_ledgers
from growctl.ledger.file import LedgerError
from growctl.ledger.ledger import Ledger
from growctl.runs.find import find_runs
from growctl.runs_dir import RunPaths
from model.errors import UserError
from tests.growctl.invented_runs import LARGE, SMALL, FakeRun, control, ladder
from tests.growctl.runs import run_here


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def machines(tmp_path: Path) -> tuple[Path, Path]:
    """The runs directories of two machines; the second has a ladder and a control of it."""
    here, there = tmp_path / "here", tmp_path / "there"
    ladder(here, name="mine")
    ladder_id = ladder(there, 1.20).path
    with Ledger(ladder_id, read_only=True) as ledger:
        control(there, 1600, 1.25, ladder_id=ledger.run().run_id)
    return here, there


def test_one_report_shows_the_ledgers_of_two_machines(machines: tuple[Path, Path]) -> None:
    here, there = machines
    before = files_of(there)
    document = import_ledgers([there], here)
    assert [entry.name for entry in document.ledgers] == ["quick", "quick-control-tokenformer-scratch-1600"]
    assert files_of(there) == before, "the source is not touched"
    runs = {run.name: run for run in find_runs(here)}
    assert set(runs) == {"mine", "quick", "quick-control-tokenformer-scratch-1600"}
    assert runs["quick"].final_loss == 1.20
    assert runs["quick"].stages == {run.name: run for run in find_runs(there)}["quick"].stages
    assert runs["quick"].notes == ("Its ledger was imported from elsewhere, so that it has no checkpoints here.",)


def test_the_report_on_an_imported_ledger_prints_no_command_that_needs_its_schedule(
    machines: tuple[Path, Path], tmp_path: Path
) -> None:
    for runs, has_command in ((machines[1], True), (tmp_path / "copy", False)):
        if not has_command:
            import_ledgers([machines[1]], runs)
        out, _ = run_here("report", "quick", "--runs-dir", runs)
        assert "The strongest opponent is missing" in out
        assert ("to train it:" in out) is has_command


def test_importing_again_brings_a_ledger_up_to_date(machines: tuple[Path, Path], tmp_path: Path) -> None:
    here = machines[0]
    run = FakeRun(tmp_path / "cluster", "growing", [SMALL, LARGE]).train(0, 1.42)
    for source in (run.path.parent, run.path):
        assert [entry.name for entry in import_ledgers([source], here).ledgers] == ["growing"]
    run.train(1, 1.3, start=1.42)
    import_ledgers([run.path], here)
    [found] = find_runs(here, ["growing"])
    assert found.final_loss == 1.3


def test_an_older_copy_does_not_replace_a_newer_one(machines: tuple[Path, Path], tmp_path: Path) -> None:
    here = machines[0]
    run = FakeRun(tmp_path / "cluster", "growing", [SMALL, LARGE]).train(0, 1.42)
    old = Path(shutil.copy(run.path, tmp_path / "old.db"))
    run.train(1, 1.3, start=1.42)
    import_ledgers([run.path], here)
    with pytest.raises(UserError, match="or has rows that this one lacks"):
        import_ledgers([old], here)
    assert find_runs(here, ["growing"])[0].final_loss == 1.3


def test_a_name_that_another_run_has_is_refused_before_anything_is_copied(
    machines: tuple[Path, Path], tmp_path: Path
) -> None:
    """Another run here, the run itself, or one of another source."""
    here, there = machines
    ladder(tmp_path / "third", name="mine")
    ladder(tmp_path / "fourth", name="quick")
    before = files_of(here)
    for sources, name in (([tmp_path / "third"], "mine"), ([here], "mine"), ([there, tmp_path / "fourth"], "quick")):
        with pytest.raises(UserError, match=rf"is another run named '{name}', .*; give a --prefix") as refused:
            import_ledgers(sources, here)
        assert str(sources[-1] / name / "ledger.db") in str(refused.value)
        assert files_of(here) == before


def test_a_prefix_makes_room_and_controls_stay_with_their_own_ladder(machines: tuple[Path, Path]) -> None:
    here, there = machines
    ladder(here, name="quick")
    import_ledgers([there], here, prefix="cluster-")
    runs = {run.name: run for run in find_runs(here)}
    assert runs["cluster-quick-control-tokenformer-scratch-1600"].control_of == "cluster-quick"
    assert {"mine", "quick", "cluster-quick"} < set(runs)


def test_a_changed_row_is_refused(machines: tuple[Path, Path]) -> None:
    here, there = machines
    with sqlite3.connect(there / "quick/ledger.db") as connection:
        connection.execute("DROP TRIGGER keeps_on_update")
        connection.execute("UPDATE record SET body = replace(body, '1', '2')")
    before = files_of(here)
    with pytest.raises(LedgerError, match="the ledger is broken"):
        import_ledgers([there], here)
    assert files_of(here) == before


@pytest.mark.parametrize("source", ["empty", "missing"])
def test_a_source_without_a_ledger_is_refused(tmp_path: Path, source: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=f"{source}: no ledger here; give a ledger.db"):
        import_ledgers([tmp_path / source], tmp_path / "runs")


def test_a_name_that_cannot_be_a_folder_is_refused(machines: tuple[Path, Path]) -> None:
    here, there = machines
    with pytest.raises(UserError, match=r"no run can be named '\.\./quick': must be letters"):
        import_ledgers([there], here, prefix="../")


def test_status_says_that_a_run_was_imported_and_no_command_resumes_it(machines: tuple[Path, Path]) -> None:
    here, there = machines
    import_ledgers([there], here)
    status = {run["name"]: run for run in json.loads(run_here("status", "--json", "--runs-dir", str(here))[0])["runs"]}
    imported = status["quick"]
    assert (imported["state"], imported["resume_command"]) == ("imported", None)
    assert imported["notes"] == ["its ledger was imported from elsewhere, so that it has no checkpoints here"]
    assert status["quick-control-tokenformer-scratch-1600"]["control_of"] == "quick"
    assert "imported" in run_here("status", "--runs-dir", str(here))[0]


def test_no_run_trains_in_the_directory_of_an_imported_ledger(machines: tuple[Path, Path]) -> None:
    here, there = machines
    import_ledgers([there], here)
    before = files_of(here)
    _, err = run_here("run", "quickstart", "--name", "quick", "--runs-dir", str(here), expect=2)
    assert err.startswith(f"growctl: {here / 'quick'} exists and is not a growctl run")
    assert err.endswith("; choose another name with --name\n")
    assert files_of(here) == before


def test_the_command_says_what_it_did(machines: tuple[Path, Path]) -> None:
    here, there = machines
    command = ["ledger", "import", str(there / "quick"), "--runs-dir", str(here)]
    assert run_here(*command)[0] == f"quick: imported from {there / 'quick/ledger.db'}\n"
    out = run_here(*command, "--json")[0]
    assert json.loads(out)["ledgers"][0]["name"] == "quick"
    said = json.loads(RunPaths(here / "quick").imported.read_text())
    assert said["source"] == str(there / "quick/ledger.db")
