"""Lets commands read an engine checkpoint: they get a temporary conversion of it.

The conversion never goes into the run's directory. A command that only reads must not stop a run from starting, and a
run removes conversions whenever it has a newer checkpoint. The conversion of the same checkpoint is the same, to the
last bit of its manifest, so what was grown from one names the next one as its parent.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import gettempdir

from growctl.run.resume import convert
from stages.checkpoint.manifest import read_manifest
from stages.checkpoint.pickles import check_origin
from stages.checkpoint.staging import remove_abandoned, temporary_directory
from stages.checkpoint.verify import verify_checkpoint
from stages.stage_dir import StagePaths, converted_directory, staging_directory


@contextmanager
def as_parameters(
    checkpoint: Path, runs_dir: Path, tell: Callable[[str], None], output: Path | None = None
) -> Iterator[Path]:
    """Yields `checkpoint` or, if it is an engine checkpoint, its conversion, which is removed afterwards.

    The conversion is made beside `output`, so that files can be hard-linked from it, or else in the system's temporary
    directory.

    Raises CheckpointError if the engine checkpoint is broken, OriginError if it lies outside `runs_dir`, RunFailed if
    it cannot be converted.
    """
    manifest = read_manifest(checkpoint)
    if manifest.kind == "parameters":
        yield checkpoint
        return
    verify_checkpoint(checkpoint)
    check_origin(checkpoint, runs_dir)
    place = _existing(output.absolute().parent) if output else Path(gettempdir())
    remove_abandoned(place)
    with temporary_directory(place / staging_directory(output or checkpoint).name) as folder:
        tell(f"{checkpoint} is an engine checkpoint; converting it in {folder}")
        target = folder / converted_directory(checkpoint).name
        yield convert(checkpoint, target, log=StagePaths(folder).log)


def _existing(folder: Path) -> Path:
    return next(place for place in (folder, *folder.parents) if place.is_dir())
