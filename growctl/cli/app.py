"""The `growctl` application, its entry point, and the commands `run`, `plan`, `prepare` and `report`.

Each command parses its arguments, calls a function and prints. Slow modules are imported on use.
"""

import errno
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer

from growctl.cli import (
    checkpoints,
    compare,
    data,
    evaluate,
    exchange,
    generate,
    ledger,
    machine,
    report,
    schedules,
    storage,
    sweep,
)
from growctl.cli import inspect as inspection
from growctl.cli import verify as verification
from growctl.cli.options import (
    DEFAULT_RUNS_DIR,
    AsJson,
    NoReuse,
    Overrides,
    ReuseFrom,
    RunName,
    RunsDir,
    ScheduleName,
    Until,
    WithControls,
    check_name,
    default_runs_dir,
)
from growctl.run import signals
from growctl.text.escaping import say

app = typer.Typer(
    name="growctl",
    help="Grow a language model instead of retraining it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

# The groups of commands in `growctl --help`, in this order.
TRAINING = "Train a ladder"
CHECKPOINTS = "Checkpoints"
USING = "Use a model"
HOUSEKEEPING = "Runs and this machine"

_tell = partial(say, error=True)

UNUSABLE_PATH = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST)


def _print_version(wanted: bool) -> None:
    if wanted:
        from growctl.bugs import growctl_version

        say(f"growctl {growctl_version()}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version of growctl.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Options of growctl itself."""


@app.command(rich_help_panel=TRAINING)
def run(
    schedule: ScheduleName,
    overrides: Overrides = None,
    name: RunName = None,
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
    controls: WithControls = None,
    until: Until = None,
    no_reuse: NoReuse = False,
    reuse_from: ReuseFrom = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            help="Train a run for each of these seeds, one after another: 0,1,2 gives NAME-seed-0, NAME-seed-1, "
            "NAME-seed-2.",
            metavar="SEED,...",
        ),
    ] = None,
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
    sources = reuse_sources(runs_dir, reuse_from or [], no_reuse)
    if seeds is not None:
        from growctl.run.sets import grid, set_requests

        points = grid(overrides or [], seeds)
        requests = set_requests(
            *(schedule, points, runs_dir), name=name, with_controls=controls, sources=sources, until=until
        )
        sweep.train_requests(requests, runs_dir, dry_run)
        return
    loaded = load_schedule(schedule, overrides or [], runs_dir=runs_dir, run=name)
    request = LadderRequest.of(loaded, schedule, runs_dir, name, controls, sources, until, overrides or [])
    ladder = request.ladder.name
    where = "" if runs_dir == DEFAULT_RUNS_DIR else f" --runs-dir {runs_dir}"
    note = ""
    if controls is None and request.leaves_controls_out:
        note = f"{ladder}: its {CONTROLS_LEFT_OUT}; to train them, add --controls"
    if dry_run:
        from growctl.cli.dry_run import dry_run_text

        if note:
            say(note, error=True)
        say(dry_run_text(request))
    elif loaded.launch.cluster == "slurm":
        from growctl.run.slurm_jobs import submit

        screen = Screen(Terminal())
        if note:
            screen.message(note)
        submit(request, screen)
        say(f"\nTo see its progress: growctl status {ladder}{where}")
    else:
        from growctl.run.runner import run as run_schedule

        with make_screen(Terminal()) as screen:
            if note:
                screen.message(note)
            run_schedule(request, screen)
        if until is not None:
            screen.message(f"Trained up to stage {until}. To train the rest, run the same command without --until.")
        screen.message(f"To see its cost and results: growctl report {ladder}{where}")


@app.command(rich_help_panel=TRAINING)
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


@app.command(rich_help_panel=TRAINING)
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
    as_json: AsJson = False,
) -> None:
    """Prepare a schedule's dataset, for example on a machine without GPUs. A later `run` uses it.

    Run the same command again to resume after an interruption.

    Example: growctl prepare quickstart
    """
    from growctl.ladder.datasets import dataset_warnings, known_sizes
    from growctl.ladder.load import load_schedule
    from growctl.launch.prepare import execute_on
    from growctl.run.screen import make_screen
    from growctl.runs_dir import RunsPaths
    from growctl.schedule.sources import prepare_data
    from growctl.text.console import Terminal
    from stages.corpus.tasks import Progress
    from stages.counted import counted
    from stages.data.dataset import read_dataset_manifest

    loaded = load_schedule(schedule, overrides or [], runs_dir=runs_dir)
    runs = RunsPaths(runs_dir)
    warnings: list[str] = []
    with make_screen(Terminal(stderr=True)) as screen:
        progress = Progress(runs.datasets_log, screen.preparing, screen.preparing_work, warnings.append)
        execute = execute_on(executor, loaded, runs.datasets, runs.datasets_log, screen.message)
        path = prepare_data(loaded.data, runs.datasets, progress, execute)
    manifest = read_dataset_manifest(path)
    warnings += dataset_warnings(loaded, known_sizes(loaded.data, runs_dir))
    if as_json:
        from growctl.run.dataset import PrepareDocument
        from growctl.text.documents import print_document

        print_document(PrepareDocument(path, manifest, tuple(warnings)))
    else:
        for split, content in manifest.splits.items():
            say(
                f"{split}: {counted(content.num_documents, 'document')}, {counted(content.num_tokens, 'token')}, "
                f"{counted(content.num_bytes, 'byte')}"
            )
        if manifest.skipped.total:
            say(f"skipped: {manifest.skipped}")
        for warning in warnings:
            screen.message(f"warning: {warning}")
        say(str(path))


app.command(rich_help_panel=TRAINING)(report.report)
app.command(rich_help_panel=TRAINING)(compare.compare)
app.command(rich_help_panel=TRAINING)(sweep.sweep)
app.command(rich_help_panel=TRAINING)(schedules.init)
app.command(rich_help_panel=TRAINING)(schedules.validate)
app.command(rich_help_panel=TRAINING)(schedules.schema)
app.add_typer(data.data_app, rich_help_panel=TRAINING)
app.add_typer(ledger.ledger_app, rich_help_panel=TRAINING)
app.command(rich_help_panel=CHECKPOINTS)(checkpoints.show)
app.command(rich_help_panel=CHECKPOINTS)(checkpoints.expand)
app.command(rich_help_panel=CHECKPOINTS)(checkpoints.shrink)
app.command(rich_help_panel=CHECKPOINTS)(verification.verify)
app.add_typer(exchange.import_app, rich_help_panel=CHECKPOINTS)
app.command(rich_help_panel=USING)(generate.generate)
app.command("eval", rich_help_panel=USING)(evaluate.evaluate)
app.command(rich_help_panel=USING)(inspection.inspect)
app.command(rich_help_panel=USING)(exchange.export)
app.command(rich_help_panel=HOUSEKEEPING)(machine.status)
app.command(rich_help_panel=HOUSEKEEPING)(storage.runs)
app.command(rich_help_panel=HOUSEKEEPING)(storage.clean)
app.command(rich_help_panel=HOUSEKEEPING)(machine.doctor)


def main() -> NoReturn:
    """The console script: runs a command and turns exceptions into one message and an exit code."""
    signals.install_handlers()
    try:
        app(standalone_mode=True)
    except OSError as error:
        # The user can fix a path that cannot be read or written. A full or failing disk is not the user's mistake.
        path = f"{error.filename}: " if error.filename else ""
        _fail(f"{path}{error.strerror or error}", 2 if error.errno in UNUSABLE_PATH else 1)
    except signals.Stopped as stop:
        word = "interrupted" if stop.number == signal.SIGINT else "terminated"
        resumes = sys.argv[1:2] in (["run"], ["sweep"])  # the others start over
        _fail(word + ("; run the same command again to resume" if resumes else ""), stop.exit_code)
    except Exception as error:
        try:
            from model.errors import Failure, UserError  # imported late: doctor must start without ours
        except ImportError as reason:
            _fail(f"{reason}; growctl doctor shows where it is imported from", 1)
        if isinstance(error, UserError | Failure):
            _fail(str(error), 2 if isinstance(error, UserError) else 1)
        from growctl.bugs import report_bug

        report_bug(error, _runs_dir(sys.argv[1:]))
        sys.exit(1)
    sys.exit(0)


def _runs_dir(arguments: Sequence[str]) -> Path:
    """The runs directory that a command line names; the default if its command takes none."""
    with suppress(Exception):  # the bug must be reported even if the command line is invalid
        name, *rest = arguments
        command = typer.main.get_group(app).commands[name]
        with command.make_context(name, rest, resilient_parsing=True) as context:
            return Path(context.params["runs_dir"])
    return default_runs_dir()


def _fail(message: str, code: int) -> NoReturn:
    say(f"growctl: {message}", error=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
