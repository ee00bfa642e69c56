"""The commands on a machine and its runs: `doctor` and `status`.

Slow modules are imported on use.
"""

import re
from typing import Annotated, Literal

import typer

from growctl.cli.options import DEFAULT_RUNS_DIR, AsJson, RunsDir, runs_argument
from growctl.text.escaping import say

_COUNT = re.compile("0*[1-9][0-9]{0,8}")


def doctor(
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
    devices: Annotated[
        str, typer.Option(help="Ranks in the all-reduce test; auto: as many as a run would start.", metavar="N|auto")
    ] = "auto",
    as_json: AsJson = False,
) -> None:
    """Check that this machine can run growctl: versions, devices, disk, and a real all-reduce between ranks.

    Exit code 1 means that a check failed. Warnings do not count.

    Example: growctl doctor --devices 2
    """
    from growctl.doctor.check import DoctorDocument, carried_out, check_imports, doctor_section
    from growctl.text.console import Terminal
    from growctl.text.documents import print_document
    from growctl.text.terminal import print_sections

    if devices != "auto" and not _COUNT.fullmatch(devices):
        # No UserError: another package may shadow the one that defines it.
        say(f"growctl: --devices {devices!r}: must be auto, or a whole number above 0", error=True)
        raise typer.Exit(2)
    with Terminal(stderr=True).status("imports") as progress:
        checks = [carried_out("imports", check_imports)]
        if checks[0].level != "failed":  # else the other checks would import the wrong modules
            from growctl.doctor.diagnosis import diagnose

            ranks: Literal["auto"] | int = "auto" if devices == "auto" else int(devices)
            checks += diagnose(runs_dir, ranks, progress.update)
    document = DoctorDocument(all(check.level != "failed" for check in checks), tuple(checks))
    if as_json:
        print_document(document)
    else:
        print_sections([doctor_section(document)], Terminal(highlight=False))
    if not document.ok:
        raise typer.Exit(1)


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
    from growctl.runs.status import StatusDocument, being_prepared, find_status
    from growctl.runs.status_sections import status_sections
    from growctl.text.terminal import print_result

    statuses = find_status(runs_dir, runs or [])
    document = StatusDocument(runs_dir, tuple(being_prepared(runs_dir)), tuple(statuses))
    print_result(document, status_sections(document, details=bool(runs)), as_json=as_json)
