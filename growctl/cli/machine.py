"""The commands on a machine and its runs: `doctor` and `status`.

Slow modules are imported on use.
"""

import os
import re
from typing import Annotated, Literal

import typer

from growctl.cli.completion import complete_run
from growctl.cli.options import DEFAULT_RUNS_DIR, AsJson, RunsDir, runs_argument
from growctl.text.escaping import say

_COUNT = re.compile("0*[1-9][0-9]{0,8}")


def doctor(
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
    devices: Annotated[
        str, typer.Option(help="Ranks in the all-reduce test; auto: as many as a run would start.", metavar="N|auto")
    ] = "auto",
    bundle: Annotated[
        bool,
        typer.Option("--bundle", help="Also write FILE for a bug report: results, versions, tracebacks."),
    ] = False,
    file: Annotated[
        str | None,
        typer.Argument(help="The bundle, a new .zip file (default: growctl-bundle-TIME.zip).", metavar="FILE"),
    ] = None,
    run: Annotated[
        list[str] | None,
        typer.Option(
            help="A run for the bundle: its schedule, manifests, ledger, ends of metrics and logs. May be repeated.",
            metavar="RUN",
            autocompletion=complete_run,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check that this machine can run growctl: versions, devices, disk, and a real all-reduce between ranks.

    Exit code 1 means that a check failed. Warnings do not count. Look through a bundle before you send it.

    Example: growctl doctor --devices 2

    Example: growctl doctor --bundle bug.zip --run quickstart
    """
    from growctl.doctor.bundle import BundleError, default_file, machine_texts, new_file, write_bundle
    from growctl.doctor.check import Bundle, Check, DoctorDocument, carried_out
    from growctl.doctor.imports import check_imports
    from growctl.doctor.table import print_bundle, print_check, print_summary
    from growctl.redaction import Redaction
    from growctl.text.console import Terminal
    from growctl.text.documents import print_document

    if devices != "auto" and not _COUNT.fullmatch(devices):
        raise _unusable(f"--devices {devices!r}: must be auto, or a whole number above 0")
    if (file or run) and not bundle:
        what = f"--run {(run or [])[0]!r}" if run else repr(file)
        raise _unusable(f"{what}: goes with --bundle only")
    try:
        target = new_file(file or default_file()) if bundle else None
    except BundleError as error:
        raise _unusable(str(error)) from None
    ranks: Literal["auto"] | int = "auto" if devices == "auto" else int(devices)
    console = Terminal(highlight=False)
    checks: list[Check] = []
    texts: dict[str, str] = {}
    values: set[str] = set()

    def done(check: Check) -> None:
        checks.append(check)
        if not as_json:
            print_check(check, console)

    # A spinner and lines on one terminal must come from one console.
    spinner = console if console.is_terminal and not as_json else Terminal(stderr=True)
    with spinner.status("imports") as progress:
        imports = carried_out("imports", check_imports)
        if imports.state == "failed":  # the other checks would import the wrong modules
            done(imports)
        else:
            from growctl.doctor.diagnosis import diagnose

            if bundle:
                from growctl.doctor.run_texts import environment_values, texts_of_runs

                texts, values = texts_of_runs(runs_dir, run or []), environment_values(runs_dir)
            done(imports)
            for check in diagnose(runs_dir, ranks, progress.update):
                done(check)
    failed = any(check.state == "failed" for check in checks)
    written: Bundle | None = None
    if target:
        try:
            names = write_bundle(target, machine_texts(checks, os.environ) | texts, Redaction.of(os.environ, values))
        except BundleError as error:
            raise _unusable(str(error)) from None
        except OSError as error:
            say(f"growctl: {target}: could not be written: {error.strerror}", error=True)
            raise typer.Exit(1) from None
        written = Bundle(target, tuple(names))
    if as_json:
        print_document(DoctorDocument(not failed, tuple(checks), written))
    else:
        print_summary(checks, console)
        if written:
            print_bundle(written, console)
    if failed:
        raise typer.Exit(1)


def _unusable(message: str) -> typer.Exit:
    """Prints the message of unusable input. No UserError: another package may shadow the one that defines it."""
    say(f"growctl: {message}", error=True)
    return typer.Exit(2)


def status(
    runs: Annotated[
        list[str] | None, runs_argument("Runs to show in detail (default: one line for every run).")
    ] = None,
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
    as_json: AsJson = False,
) -> None:
    """Show which runs are done, running, stopped or failed, their progress, and how to resume. Only reads files.

    Example: growctl status quickstart
    """
    from growctl.status.runs import find_status, status_document
    from growctl.text.console import Terminal
    from growctl.text.documents import print_document

    found = find_status(runs_dir, runs or [])
    document = status_document(runs_dir, found)
    if as_json:
        print_document(document)
        return
    from growctl.status.table import print_commands, print_details, print_runs

    console = Terminal(highlight=False)
    if not found:
        console.print(f"there are no runs in {runs_dir} yet", soft_wrap=True)
    elif runs:
        print_details(found, console)
    else:
        print_runs(found, [run.name for run in found], console)
    print_commands(found, console)
    for dataset in document.preparing:
        console.print(f"dataset {dataset} is being prepared", soft_wrap=True)
