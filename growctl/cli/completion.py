"""What a shell completes for growctl's arguments. Imports nothing slow: it runs at every press of the tab key."""

from pathlib import Path

import typer


def complete_run(context: typer.Context, incomplete: str) -> list[str]:
    """The names of runs that start with `incomplete`."""
    from growctl.runs_dir import RunPaths  # late: `doctor` must start even if another `stages` shadows ours

    runs_dir = _runs_dir(context)
    folders = sorted(runs_dir.iterdir()) if runs_dir.is_dir() else []
    names = [folder.name for folder in folders if RunPaths(folder).schedule.is_file()]
    return [name for name in names if name.startswith(incomplete)]


def complete_checkpoint(context: typer.Context, incomplete: str) -> list[str]:
    """The names of runs, or after `RUN/` of its stages; nothing for a path, which the shell then completes itself."""
    from growctl.runs_dir import RunPaths

    run, slash, _ = incomplete.partition("/")
    if not slash:
        return complete_run(context, incomplete)
    names = [f"{run}/{name}" for _, name, _ in RunPaths(_runs_dir(context) / run).stages_found()]
    return [name for name in names if name.startswith(incomplete)]


def complete_schedule(incomplete: str) -> list[str]:
    """The names of the shipped schedules that start with `incomplete`; the shell completes files itself."""
    from growctl.schedule.files import shipped_schedules

    return [name for name in shipped_schedules() if name.startswith(incomplete)]


def _runs_dir(context: typer.Context) -> Path:
    """The runs directory of the command line so far: its option, the environment's or the default."""
    return Path(context.params["runs_dir"])
