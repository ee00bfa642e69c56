"""A ladder records each of its starts."""

from pathlib import Path

from growctl.ladder.load import load_schedule
from growctl.ledger.lines import read_starts
from growctl.run.requests import LadderRequest
from growctl.runs.directory import RunSet
from growctl.runs_dir import RunPaths
from tests.growctl.runs import CONTROL, SCHEDULE, write_schedule


def test_the_recorded_command_says_everything_that_was_asked_for(tmp_path: Path) -> None:
    schedule = load_schedule(str(write_schedule(tmp_path, SCHEDULE + CONTROL)), ["seed=3"])
    runs = tmp_path / "my runs"
    for name, with_controls, until in (("a", None, None), ("b", False, None), ("b", True, "small")):
        (runs / name).mkdir(parents=True, exist_ok=True)
        belongs = RunSet("a", {"seed": 3})
        request = LadderRequest.of(
            *(schedule, "tiny.yaml", runs, name, with_controls, (runs,), until, ["seed=3"]), run_set=belongs
        )
        request.record_choices()
    basics = ["growctl", "run", "tiny.yaml", "seed=3", "--name"]
    [first] = read_starts(RunPaths(runs / "a"))
    assert first.command == (*basics, "a", "--runs-dir", str(runs))
    assert [start.command[7:] for start in read_starts(RunPaths(runs / "b"))] == [
        (str(runs), "--no-controls"),
        (str(runs), "--until", "small"),
    ]
