"""The commands that train a schedule or look ahead: `run`, `plan`, `prepare` and `sweep`.

Slow modules are imported on use.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from growctl.cli.options import (
    DEFAULT_RUNS_DIR,
    AsJson,
    NoReuse,
    Overrides,
    Result,
    ReuseFrom,
    RunName,
    RunsDir,
    ScheduleName,
    Seeds,
    Until,
    WithControls,
    check_name,
    emit,
    prints,
)
from growctl.text.escaping import say

if TYPE_CHECKING:
    from growctl.run.requests import LadderRequest


def run(
    schedule: ScheduleName,
    overrides: Overrides = None,
    name: RunName = None,
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
    controls: WithControls = None,
    until: Until = None,
    no_reuse: NoReuse = False,
    reuse_from: ReuseFrom = None,
    seeds: Seeds = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print the commands, environment and sbatch scripts of the run, and write nothing; with --seeds, list "
            "the runs with their sizes and FLOPs, and the sbatch scripts.",
        ),
    ] = False,
) -> None:
    """Train a schedule, stage by stage, growing the model in between. Run the same command again to resume.

    With launch.cluster=slurm, submit the jobs and return.

    Example: growctl run quickstart stages.0.train_tokens=200k seed=1 --name try-seed-1

    Example: growctl run quickstart --seeds 0,1,2
    """
    from growctl.ladder.load import load_schedule
    from growctl.run.requests import LadderRequest, reuse_sources
    from growctl.run.screen import Screen, make_screen
    from growctl.runs_dir import CONTROLS_LEFT_OUT
    from growctl.text.console import Terminal

    check_name(name)
    if seeds is not None:
        sweep(schedule, overrides, seeds, name, runs_dir, controls, until, no_reuse, reuse_from, dry_run)
        return
    sources = reuse_sources(runs_dir, reuse_from or [], no_reuse)
    loaded = load_schedule(schedule, overrides or [], runs_dir=runs_dir, run=name)
    request = LadderRequest.of(loaded, schedule, runs_dir, name, controls, sources, until)
    ladder = request.ladder.name
    where = "" if runs_dir == DEFAULT_RUNS_DIR else f" --runs-dir {runs_dir}"
    if controls is None and request.leaves_controls_out:
        say(f"{ladder}: its {CONTROLS_LEFT_OUT}; to train them, add --controls", error=dry_run)
    if dry_run:
        from growctl.cli.dry_run import dry_run_text

        say(dry_run_text(request))
    elif loaded.launch.cluster == "slurm":
        from growctl.run.slurm_jobs import submit

        submit(request, Screen(Terminal()))
        say(f"\nTo see its progress: growctl status {ladder}{where}")
    else:
        from growctl.run.runner import run as run_schedule

        with make_screen(Terminal()) as screen:
            run_schedule(request, screen)
        if until is not None:
            screen.message(f"Trained up to stage {until}. To train the rest, run the same command without --until.")
        screen.message(f"To see its cost and results: growctl report {ladder}{where}")


def plan(
    schedule: ScheduleName,
    overrides: Overrides = None,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure", help="Time a few real training steps of each size on this machine, on random tokens."
        ),
    ] = False,
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
    as_json: AsJson = False,
) -> None:
    """Show the size, FLOPs, memory, time and money of every stage and control, without training.

    Memory, time and money are computed for the devices that launch.hardware describes. The text need not be on this
    machine: plan warns if it is missing. Passes over it are known once the dataset is prepared.

    Example: growctl plan pile_1.4b launch.devices=8 launch.hardware.device=h100 launch.hardware.mfu=0.4
    """
    from growctl.ladder.load import load_schedule
    from growctl.ladder.plan import make_plan, print_plan
    from growctl.text.console import Terminal
    from growctl.text.documents import print_document

    loaded = load_schedule(schedule, overrides or [], runs_dir=runs_dir)
    plan = make_plan(loaded, runs_dir)
    if measure:
        from growctl.ladder.measure import measure_sizes

        progress = Terminal(stderr=True, highlight=False)
        measurements = measure_sizes(plan, lambda line: progress.print(line, soft_wrap=True))
        plan = make_plan(loaded, runs_dir, measurements)
    if as_json:
        print_document(plan)
    else:
        print_plan(plan, Terminal())


@prints
def prepare(
    schedule: ScheduleName,
    overrides: Overrides = None,
    executor: Annotated[
        Literal["local", "slurm", "ray"],
        typer.Option(
            help="Who tokenises: local (the cores of this machine), slurm (an array of jobs, with the options of "
            "launch.slurm) or ray (a Ray cluster)."
        ),
    ] = "local",
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
) -> Result:
    """Prepare a schedule's dataset, for example on a machine without GPUs. A later `run` uses it.

    Run the same command again to resume after an interruption.

    Example: growctl prepare quickstart
    """
    from growctl.ladder.datasets import dataset_warnings, known_sizes
    from growctl.ladder.load import load_schedule
    from growctl.launch.prepare import execute_on
    from growctl.run.dataset import PrepareDocument
    from growctl.run.screen import make_screen
    from growctl.runs_dir import RunsPaths
    from growctl.schedule.sources import prepare_data
    from growctl.text.console import Terminal
    from model.errors import UserError
    from stages.corpus.tasks import Progress
    from stages.images.either import read_any_manifest

    loaded = load_schedule(schedule, overrides or [], runs_dir=runs_dir)
    if loaded.data.images and executor != "local":
        raise UserError(f"--executor {executor}: is for text; images are prepared on this machine")
    runs = RunsPaths(runs_dir)
    warnings: list[str] = []
    with make_screen(Terminal(stderr=True)) as screen:
        progress = Progress(runs.datasets_log, screen.preparing, screen.preparing_work, warnings.append)
        execute = execute_on(executor, loaded, runs.datasets, runs.datasets_log, screen.message)
        path = prepare_data(loaded.data, runs.datasets, progress, execute)
    manifest = read_any_manifest(path)
    warnings += dataset_warnings(loaded, known_sizes(loaded, runs_dir))
    lines = [f"{name}: {split}" for name, split in manifest.splits.items()]
    if manifest.skipped.total:
        lines.append(f"skipped: {manifest.skipped}")
    for warning in warnings:
        screen.message(f"warning: {warning}")
    return Result(PrepareDocument(path, manifest, tuple(warnings)), [*lines, str(path)])


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
    seeds: Seeds = None,
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

    Example: growctl sweep quickstart learning_rate.peak=2e-3,4e-3,8e-3 --seeds 0,1,2 --dry-run
    """
    from growctl.run.requests import RunFailed, reuse_sources
    from growctl.run.screen import make_screen
    from growctl.run.sets import describe_set, grid, set_requests, sweep_section, train_set
    from growctl.text.console import Terminal

    check_name(name)
    points = grid(overrides or [], seeds)
    sources = reuse_sources(runs_dir, reuse_from or [], no_reuse)
    requests = set_requests(
        *(schedule, points, runs_dir), name=name, with_controls=controls, sources=sources, until=until
    )
    failures: dict[str, str] = {}
    if not dry_run:
        with make_screen(Terminal(stderr=as_json)) as screen:
            failures = train_set(requests, screen)
    document = describe_set(requests, failures)
    emit(Result(document, [sweep_section(document)]), as_json)
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
