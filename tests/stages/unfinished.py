"""Directories as a process that was killed while it wrote them leaves them."""

from pathlib import Path

from stages.process.holder import Holder
from stages.stage_dir import WRITING_MARK, staging_directory


def left(directory: Path, **changes: str) -> Path:
    """The staging directory of `directory`, half written. `changes`: what its mark says otherwise of the process."""
    me = Holder.me()
    assert me.process_start is not None
    dead = me.model_copy(update={"process_start": me.process_start - 1, **changes})
    staging = staging_directory(directory)
    (staging / "parameters").mkdir(parents=True)
    (staging / "parameters/half").touch()
    (staging / WRITING_MARK).write_text(dead.model_dump_json())
    return staging
