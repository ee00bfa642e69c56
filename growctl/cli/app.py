"""The `growctl` application and its entry point.

Each command parses its arguments, calls a function and prints. Slow modules are imported on use.
"""

import errno
import signal
import sys
from collections.abc import Callable
from typing import Annotated, NoReturn

import typer

from growctl.cli import checkpoints, data, evaluate, exchange, generate, law, report, run, runs, schedules, verify
from growctl.cli.options import default_runs_dir
from growctl.run import signals
from growctl.text.escaping import say

app = typer.Typer(
    name="growctl",
    help="Grow a language model instead of retraining it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

_PANELS: dict[str, tuple[Callable[..., None] | typer.Typer, ...]] = {
    "Train a ladder": (
        *(run.run, run.plan, run.prepare, report.report, report.compare, run.sweep),
        *(schedules.init, schedules.validate, schedules.schema, law.law_app, data.data_app, data.ledger_app),
    ),
    "Checkpoints": (checkpoints.show, checkpoints.expand, checkpoints.shrink, verify.verify, exchange.import_app),
    "Use a model": (generate.generate, evaluate.evaluate, evaluate.inspect, exchange.export),
    "Runs and this machine": (runs.status, runs.runs, runs.clean, runs.doctor),
}
"""The groups of commands in `growctl --help`, in this order."""

UNUSABLE_PATH = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST),
    errno.ENAMETOOLONG,
)


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


for panel, commands in _PANELS.items():
    for command in commands:
        if isinstance(command, typer.Typer):
            app.add_typer(command, rich_help_panel=panel)
        else:
            app.command("eval" if command is evaluate.evaluate else None, rich_help_panel=panel)(command)


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

        report_bug(error, default_runs_dir())
        sys.exit(1)
    sys.exit(0)


def _fail(message: str, code: int) -> NoReturn:
    say(f"growctl: {message}", error=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
