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
    """The names of runs, after `RUN/` of its stages, after `RUN/STAGE/` of its checkpoints and release.

    Nothing for a path, which the shell then completes itself.
    """
    from growctl.runs_dir import RunPaths

    above, slash, _ = incomplete.rpartition("/")
    if not slash:
        return complete_run(context, incomplete)
    run, *inside = above.split("/")
    stages = {name: paths for _, name, paths in RunPaths(_runs_dir(context) / run).stages_found()}
    if not inside:
        names = list(stages)
    elif stage := stages.get(inside[0]):
        release, in_release = stage.release, inside[1:] == [stage.release.directory.name]
        names = (release if in_release else stage).checkpoint_names() if in_release or not inside[1:] else []
        names += [release.directory.name] if not inside[1:] and release.directory.is_dir() else []
    else:
        names = []
    return [f"{above}/{name}" for name in names if f"{above}/{name}".startswith(incomplete)]


def complete_schedule(incomplete: str) -> list[str]:
    """The names of the shipped schedules that start with `incomplete`; the shell completes files itself."""
    from growctl.schedule.files import shipped_schedules

    return [name for name in shipped_schedules() if name.startswith(incomplete)]


def complete_document(incomplete: str) -> list[str]:
    """The names of the documents that start with `incomplete`."""
    from growctl.text.documents import DOCUMENTS

    return [name for name in DOCUMENTS if name.startswith(incomplete)]


def _runs_dir(context: typer.Context) -> Path:
    """The runs directory of the command line so far: its option, the environment's or the default."""
    return Path(context.params["runs_dir"])
