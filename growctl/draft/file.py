"""The file that a draft is written to: its name, and writing it without ever replacing another."""

import os
from pathlib import Path

from growctl.draft.wish import Wish
from growctl.runs_dir import NAME_ALLOWED, RUN_NAME
from growctl.schedule.errors import shown
from growctl.schedule.files import ENDINGS
from growctl.text.formatting import short_count
from model.errors import UserError

STANDARD_OUTPUT = "-"


def default_file(wish: Wish) -> str:
    """The file's name if the user gives none: 350m.yaml."""
    return f"{short_count(wish.params).lower()}.yaml"


def new_file(file: str) -> Path:
    """The path of a file to write. Raises UserError if it exists, or cannot hold a schedule."""
    path = Path(file)
    if os.path.lexists(path):
        raise _exists(path)
    if path.suffix not in ENDINGS:
        raise UserError(f"{shown(file)}: the file of a schedule ends in .yaml; write {shown(f'{file}.yaml')}")
    if not RUN_NAME.fullmatch(path.stem):
        raise UserError(f"{shown(file)}: would name the run {shown(path.stem)}; a run's name is {NAME_ALLOWED}")
    if not path.parent.is_dir():
        raise UserError(f"{shown(file)}: there is no folder {shown(str(path.parent))}; create it first")
    return path


def write_new(path: Path, text: str) -> None:
    """Writes `text` to the new file `path`, or leaves nothing. Raises UserError if it exists by now."""
    try:
        file = path.open("x", encoding="utf-8")
    except FileExistsError:
        raise _exists(path) from None
    try:
        with file:
            file.write(text)
    except BaseException:
        path.unlink()
        raise


def _exists(path: Path) -> UserError:
    return UserError(f"{shown(str(path))}: exists already, and init replaces no file; name another, or remove it")
