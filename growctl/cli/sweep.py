"""The command `sweep`, and what `run --seeds` shares with it.

Slow modules are imported on use.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from growctl.cli.options import (
    DEFAULT_RUNS_DIR,
    AsJson,
    NoReuse,
    ReuseFrom,
    RunsDir,
    ScheduleName,
    Until,
    WithControls,
    check_name,
)
from growctl.text.escaping import say

if TYPE_CHECKING:
    from growctl.run.requests import LadderRequest


def sweep(
    schedule: ScheduleName,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            help="Overrides of the schedule, in hydra's syntax; one or more of them with several values: 1,2 or "
            "choice(1,2) or range(1,3).",
            metavar="KEY=VALUE,VALUE",
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the set; its runs' names begin with it (default: the schedule's name).")
    ] = None,
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
    controls: WithControls = None,
    until: Until = None,
    no_reuse: NoReuse = False,
    reuse_from: ReuseFrom = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="List the runs with their sizes and FLOPs, and with launch=slurm the job scripts; write nothing.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train a run for every combination of values, one after another. Run the same command again to resume.

    Finished runs are skipped. A run that fails does not stop the others; the same command tries it again. With
    launch=slurm, submit the jobs of all runs and return. With --json, progress goes to standard error.

    Example: growctl sweep quickstart learning_rate.peak=2e-3,4e-3,8e-3 seed=0,1,2 --dry-run
    """
    from growctl.run.requests import reuse_sources
    from growctl.run.sets import grid, set_requests

    check_name(name)
    points = grid(overrides or [])
    sources = reuse_sources(runs_dir, reuse_from or [], no_reuse)
    requests = set_requests(
        *(schedule, points, runs_dir), name=name, with_controls=controls, sources=sources, until=until
    )
    train_requests(requests, runs_dir, dry_run, as_json)


def train_requests(
    requests: Sequence["LadderRequest"], runs_dir: Path, dry_run: bool = False, as_json: bool = False
) -> None:
    """Trains the runs of a set and prints how they ended, or only lists them. Raises RunFailed if one failed."""
    from growctl.run.requests import RunFailed
    from growctl.run.screen import make_screen
    from growctl.run.sets import describe_set, sweep_section, train_set
    from growctl.text.console import Terminal
    from growctl.text.terminal import print_result

    failures: dict[str, str] = {}
    if not dry_run:
        with make_screen(Terminal(stderr=as_json)) as screen:
            failures = train_set(requests, screen)
    document = describe_set(requests, failures)
    print_result(document, [sweep_section(document)], as_json=as_json)
    if dry_run and not as_json:
        from growctl.cli.dry_run import dry_run_text

        for request in requests:
            if request.ladder.schedule.launch.cluster == "slurm":
                say(f"\n{dry_run_text(request)}")
    elif not as_json:
        where = "" if runs_dir == DEFAULT_RUNS_DIR else f" --runs-dir {runs_dir}"
        queued = any(request.ladder.schedule.launch.cluster == "slurm" for request in requests)
        report = f"cost and results: growctl report {_shown_as(requests, runs_dir)}"
        say(f"\nTo see their {'progress: growctl status' if queued else report}{where}")
    if failures:
        raise RunFailed(
            f"{len(failures)} of {len(requests)} runs failed: {', '.join(failures)}; run the same command again to try "
            "again"
        )


def _shown_as(requests: "Sequence[LadderRequest]", runs_dir: Path) -> str:
    """What `growctl report` calls the runs of a set: the set, or each run if a run has the set's name."""
    run_set = requests[0].ladder.run_set
    if run_set is not None and not (runs_dir / run_set.group).exists():
        return run_set.group
    return " ".join(request.ladder.name for request in requests)
