"""The commands on runs and this machine: `status`, `runs`, `clean` and `doctor`. Slow modules are imported on use."""

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from growctl.cli.options import DEFAULT_RUNS_DIR, AsJson, Result, RunsDir, prints, runs_argument

if TYPE_CHECKING:
    from growctl.text.console import Terminal


@prints
def doctor(runs_dir: RunsDir = DEFAULT_RUNS_DIR) -> Result:
    """Check that this machine can run growctl: versions, devices, disk and shared memory.

    Exit code 1 means that a check failed. Warnings do not count.

    Example: growctl doctor
    """
    from growctl.doctor.check import DoctorDocument, carried_out, check_imports, doctor_section
    from growctl.text.console import Terminal

    with Terminal(stderr=True).status("imports") as progress:
        checks = [carried_out("imports", check_imports)]
        if checks[0].level != "failed":  # else the other checks would import the wrong modules
            from growctl.doctor.machine import diagnose

            checks += diagnose(runs_dir, progress.update)
    document = DoctorDocument(all(check.level != "failed" for check in checks), tuple(checks))
    return Result(document, [doctor_section(document)], failed=not document.ok)


@prints
def status(
    runs: Annotated[
        list[str] | None, runs_argument("Runs to show in detail (default: one line for every run).")
    ] = None,
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
) -> Result:
    """Show which runs are done, running, stopped or failed, their progress, and how to resume. Only reads files.

    Example: growctl status quickstart
    """
    from growctl.runs.status import StatusDocument, being_prepared, find_status
    from growctl.runs.status_sections import status_sections

    statuses = find_status(runs_dir, runs or [])
    document = StatusDocument(runs_dir, tuple(being_prepared(runs_dir)), tuple(statuses))
    return Result(document, status_sections(document, details=bool(runs)))


@prints
def runs(
    names: Annotated[list[str] | None, runs_argument("Runs to list, with their controls (default: all).")] = None,
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
) -> Result:
    """List runs and datasets with their size on disk. Only reads files.

    Example: growctl runs
    """
    from growctl.runs.storage import measure_storage, section

    storage = measure_storage(runs_dir, names or [])
    return Result(storage, [section(storage)])


def clean(
    names: Annotated[
        list[str] | None,
        runs_argument("Runs to clean, with their controls (default: all, and datasets that no run uses)."),
    ] = None,
    trunks: Annotated[
        bool, typer.Option("--trunks", help="Also remove the checkpoints that finished ladders are extended from.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Remove without asking.")] = False,
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
    as_json: AsJson = False,
) -> None:
    """Remove what can be made again: checkpoints inside finished stages, converted checkpoints, unused datasets.

    Shows what it would remove and how much that frees, then asks.

    Without a terminal and without --yes, it only shows.

    Never touches a run that another growctl uses, and keeps the result of every stage.

    Example: growctl clean quickstart
    """
    from growctl.runs.clean import find_removable, remove, removed_section, section
    from growctl.text.console import Terminal
    from growctl.text.documents import print_document
    from growctl.text.terminal import print_sections

    cleanup = find_removable(runs_dir, names or [], trunks=trunks)
    console, progress = Terminal(highlight=False), Terminal(stderr=True, highlight=False)
    if not as_json:
        print_sections([section(cleanup)], console)
    removed = None
    if cleanup.remove and (yes or (not as_json and _confirmed(console))):
        with progress.status("checking results and removing what they replace"):
            removed = remove(cleanup)
    if as_json:
        print_document(replace(cleanup, removed=removed))
    elif removed:
        print_sections([removed_section(removed)], console)


def _confirmed(console: "Terminal") -> bool:
    """Whether the user says yes; no if there is no terminal to ask on."""
    if not (sys.stdin.isatty() and console.is_terminal):
        console.print("nothing was removed; --yes removes it", soft_wrap=True)
        return False
    return typer.confirm("Remove this?")
