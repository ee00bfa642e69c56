"""What `growctl clean --json` prints."""

from dataclasses import dataclass
from pathlib import Path

from growctl.runs.clean import Removed
from growctl.runs.removable import Cleanup, Kept, Kind, Removable, disk_use


@dataclass(frozen=True)
class MeasuredRemovable:
    """A directory that can be removed, with its size."""

    path: Path
    kind: Kind
    """`checkpoint`: inside a finished stage. `trunk`: the one right before the decay. `conversion`: of a checkpoint,
    for other ranks. `leftover`: what a dead process was writing or removing. `dataset`: one that no run uses."""

    run: str | None
    """The run's name; null for what runs share."""

    stage: str | None
    """The directory of the stage or release, below the run's `stages`."""

    bytes: int

    @classmethod
    def of(cls, item: Removable) -> "MeasuredRemovable":
        """Measures `item`."""
        return cls(item.path, item.kind, item.run, item.stage, disk_use([item]).bytes)


@dataclass(frozen=True)
class CleanDocument:
    """What can be removed from a runs directory, and what was removed."""

    runs_dir: Path
    remove: tuple[MeasuredRemovable, ...]
    """What can be removed, before anything was."""

    bytes: int
    """The size of all of them together. A file that several share counts once."""

    freed_bytes: int
    """What removing them frees: the size of the files that nothing else shares."""

    trunks: tuple[MeasuredRemovable, ...]
    """Trunk checkpoints that are kept without --trunks."""

    kept: tuple[Kept, ...]
    """What may look removable and is kept."""

    removed: Removed | None = None
    """What was removed; null if nothing was to be."""


def clean_document(cleanup: Cleanup) -> CleanDocument:
    """Measures what `cleanup` would remove, before it is removed."""
    use = disk_use(cleanup.remove)
    return CleanDocument(
        runs_dir=cleanup.runs_dir,
        remove=tuple(map(MeasuredRemovable.of, cleanup.remove)),
        bytes=use.bytes,
        freed_bytes=use.freed_bytes,
        trunks=tuple(map(MeasuredRemovable.of, cleanup.trunks)),
        kept=cleanup.kept,
    )
