"""`growctl verify --integrity`: everything below a path read again and held against what was recorded of it."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from growctl.ledger.ledger import Ledger, LedgerError
from growctl.plan.datasets import DATASETS
from growctl.run.requests import RunError, own_schedule
from model.errors import UserError
from stages.checkpoint.manifest import MANIFEST_NAME, CheckpointError, OnBytes, verify_checkpoint
from stages.data.corpus import DataError
from stages.data.dataset import read_dataset_manifest, verify_dataset

Kind = Literal["checkpoint", "dataset", "ledger", "schedule", "set aside", "unfinished"]

SCHEDULE, LEDGER = "schedule.yaml", "ledger.db"


@dataclass(frozen=True)
class Thing:
    """Something that can be checked as a whole, or that is named as what it is."""

    path: Path
    kind: Kind


@dataclass(frozen=True)
class Found:
    """What checking a thing found."""

    path: Path
    kind: Kind
    whole: bool | None
    """None: it was not checked, because nothing is promised of what is set aside or unfinished."""

    problem: str | None = None
    files: int = 1
    bytes: int = 0

    def document(self) -> dict[str, Any]:
        """The same for scripts."""
        return asdict(self) | {"path": str(self.path)}

    def line(self) -> str:
        """The same for the screen."""
        if self.whole is None:
            why = "broken, and moved here" if self.kind == "set aside" else "never finished"
            return f"{self.path}: {self.kind} ({why}), not checked"
        if not self.whole:
            return self.problem or f"{self.path} is broken"
        num_files = f"{self.files} files, {self.bytes:,} bytes" if self.kind in ("checkpoint", "dataset") else self.kind
        return f"{self.path}: OK, {num_files}"


def things(path: Path) -> list[Thing]:
    """What there is to check at `path`: a checkpoint, a dataset, a ledger, or all that lies below a run or several.

    Raises UserError where there is nothing of the kind.
    """
    if not path.exists():
        raise UserError(f"{path} does not exist")
    if path.is_file():
        if path.suffix != ".db":
            raise UserError(f"{path} is not a checkpoint, dataset, {LEDGER}, run or runs directory")
        return [Thing(path, "ledger")]
    # What is named itself is checked, whatever its name: one asks because one wants to know.
    if (path / MANIFEST_NAME).is_file():
        return [Thing(path, "dataset" if _is_dataset(path) else "checkpoint")]
    if found := list(_below(path)):
        return found
    raise UserError(
        f"{path} holds no checkpoint, dataset, ledger or run: no {MANIFEST_NAME}, no {LEDGER} and none below it"
    )


def check(thing: Thing, on_bytes: OnBytes | None = None) -> Found:
    """Reads all of `thing`; `on_bytes` is told of bytes as they are read."""
    path, kind = thing.path, thing.kind
    try:
        if kind == "checkpoint":
            checkpoint = verify_checkpoint(path, on_bytes=on_bytes)
            return _whole(thing, [file.bytes for file in checkpoint.files.values()])
        if kind == "dataset":
            verify_dataset(path, on_bytes=on_bytes)
            return _whole(thing, [file.bytes for file in read_dataset_manifest(path).files])
        if kind == "ledger":
            with Ledger.open(path, read_only=True) as ledger:
                ledger.stages()
            return _whole(thing, [path.stat().st_size])
        if kind == "schedule":
            own_schedule(path)
            return _whole(thing, [path.stat().st_size])
    except (CheckpointError, DataError, LedgerError, RunError) as error:
        return Found(path, kind, whole=False, problem=_with_path(path, str(error)))
    except OSError as error:
        return Found(path, kind, whole=False, problem=f"{error.filename or path} cannot be read: {error.strerror}")
    return Found(path, kind, whole=None)


def _whole(thing: Thing, sizes: list[int]) -> Found:
    return Found(thing.path, thing.kind, whole=True, files=len(sizes), bytes=sum(sizes))


def _with_path(path: Path, message: str) -> str:
    return message if str(path) in message else f"{path}: {message}"


def _below(folder: Path) -> Iterator[Thing]:
    """Everything in `folder` that can be checked, by name; links are not followed."""
    if (folder / SCHEDULE).is_file():
        yield Thing(folder / SCHEDULE, "schedule")
    if (folder / LEDGER).is_file() or _has_stages(folder):
        yield Thing(folder / LEDGER, "ledger")
    for child in sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()):
        if child.name.startswith("broken-"):
            yield Thing(child, "set aside")
        elif child.name.startswith(".") and (".incomplete" in child.name or child.name.endswith(".removed")):
            yield Thing(child, "unfinished")
        elif folder.name == DATASETS:
            yield Thing(child, "dataset")
        elif child.name in ("initial", "final") or child.name.startswith(("step_", "converted_")):
            yield Thing(child, "checkpoint")
        elif (child / MANIFEST_NAME).is_file():
            yield Thing(child, "dataset" if _is_dataset(child) else "checkpoint")
        else:
            yield from _below(child)


def _has_stages(folder: Path) -> bool:
    """Whether a run has trained here, which then has a ledger."""
    return any(folder.glob("stages/*/metrics.jsonl"))


def _is_dataset(directory: Path) -> bool:
    return directory.parent.name == DATASETS or (directory / "tokenizer.json").is_file()
