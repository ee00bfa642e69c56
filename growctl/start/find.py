"""Finds the checkpoint directory that the `start` block of a schedule names."""

import difflib
from collections.abc import Sequence
from pathlib import Path

from growctl.runs_dir import RunsPaths
from growctl.schema.start_block import StartBlock
from model.errors import UserError
from stages.stage_dir import MANIFEST_NAME, staging_directory


def find_checkpoint(start: StartBlock, runs_dir: Path) -> Path:
    """The directory of the checkpoint that `start` names, with its manifest.

    Raises UserError, starting with the key at fault, if there is none or if it is still being written.
    """
    if start.checkpoint is None:
        assert start.run is not None
        return _of_run(start.run, start.stage, runs_dir)
    path = Path(start.checkpoint).expanduser()
    here = f"start.checkpoint = {start.checkpoint!r}"
    if (path / MANIFEST_NAME).is_file():
        return path
    if staging_directory(path).is_dir():
        raise UserError(f"{here}: is being written, or was left unfinished; wait until it is complete")
    if not path.exists():
        raise UserError(f"{here}: does not exist; give the directory of a checkpoint (final/, step_*/, ...)")
    raise UserError(
        f"{here}: has no manifest.json yet: it is being written, or is not a checkpoint; wait until it is complete, or "
        "give the directory of a checkpoint (final/, step_*/, ...)"
    )


def _of_run(run: str, stage: str | None, runs_dir: Path) -> Path:
    """The `final/` of a stage of a run, by default of the newest finished one."""
    runs = [path.name for path in sorted(runs_dir.glob("*")) if RunsPaths(runs_dir).run(path.name).schedule.is_file()]
    if run not in runs:
        raise UserError(f"start.run = {run!r}: there is no such run in {runs_dir}{_nearest(run, runs)}")
    stages = {name: paths for _, name, paths in RunsPaths(runs_dir).run(run).stages_found()}
    finished = [name for name, paths in stages.items() if (paths.final / MANIFEST_NAME).is_file()]
    if stage is not None and stage not in stages:
        raise UserError(f"start.stage = {stage!r}: run {run} has no such stage{_nearest(stage, list(stages))}")
    if stage is not None and stage not in finished:
        raise UserError(f"start.stage = {stage!r}: this stage of run {run} is not finished yet{_nearest('', finished)}")
    if not finished:
        raise UserError(f"start.run = {run!r}: none of its stages is finished yet")
    return stages[stage or finished[-1]].final


def _nearest(word: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(word, known, n=3, cutoff=0.4) or known[:5]
    return f"; the nearest are {', '.join(near)}" if near else ""
