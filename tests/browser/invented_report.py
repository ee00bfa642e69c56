"""The page of an invented report that has everything: seeds, two ladders, controls, a release, runs that go on."""

from dataclasses import replace
from pathlib import Path

from growctl.report.page import render_page
from growctl.report.sections import report_sections
from growctl.runs.find import find_runs
from growctl.runs.runs import RunReport
from growctl.text.section import Listing, Section
from tests.growctl.invented_runs import LARGE, SMALL, FakeRun, control, stage_of

EVIL = "<script>alert(1)</script>"
COMMAND = f"growctl run quick.yaml 'name={EVIL}'"
RELEASE = replace(stage_of("0-800k/release", 800_000, 200), branch_of="0-800k", decayed=True)


def invented_runs(folder: Path) -> list[RunReport]:
    """Writes the runs into `folder`, and reads them as a report does."""
    for seed in range(3):
        name, worse = f"quick-seed-{seed}", 0.012 * seed
        ladder = FakeRun(folder, name, [SMALL, RELEASE, LARGE], run_set=("quick", {"seed": seed}), seed=seed)
        ladder.train(0, 1.42 + worse).train(1, 1.38 + worse, start=1.42).train(2, 1.28 + worse, start=1.42)
        for budget, loss in ((466, 1.38), (933, 1.315), (1866, 1.262)):
            control(folder, budget, loss + worse / 2, of=name, seed=seed)
    control(folder, 3732, None, of="quick-seed-0", seed=0)
    FakeRun(folder, "second", [SMALL, LARGE], rate=2).train(0, 1.75).train(1, None, start=2.1)
    FakeRun(folder, "waiting", [SMALL, LARGE], rate=3)
    return [_recorded_elsewhere(run) for run in find_runs(folder, [])]


def _recorded_elsewhere(run: RunReport) -> RunReport:
    """The run with what an invented ledger does not record: its seed, and a name that is no file name."""
    name = EVIL if run.name == "second" else run.name
    return replace(run, name=name, seed=run.conditions["seed"])


def invented_page(runs: list[RunReport]) -> str:
    """The page of these runs, with one more section: a command to copy."""
    command = Section("again", "Run it again", (Listing("The command", COMMAND, is_command=True),))
    return render_page(f"Report of {EVIL}", [*report_sections(runs), command])
