"""Finds the checkpoint that a user names, and the dataset that it was trained on. Imports no torch."""

import errno
from collections.abc import Callable
from pathlib import Path

from growctl.runs_dir import RunPaths, RunsPaths
from growctl.text.suggestion import did_you_mean
from model.errors import UserError
from stages.checkpoint.manifest import CheckpointError, parameter_file, read_manifest
from stages.checkpoint.staging import why_unfinished
from stages.stage_dir import MANIFEST_NAME, StagePaths, is_checkpoint_name, staging_directory

NO_SUCH_PATH = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP)
SHOWN_RUNS = 5


def find_checkpoint(reference: str, runs_dir: Path, tell: Callable[[str], None]) -> Path:
    """The checkpoint directory that `reference` stands for. Unless it is the very path given, `tell` gets a line.

    `reference` is one of these, tried in this order:

    - the path of a checkpoint directory, of a stage's directory (its `final/`), or of a run's directory (the `final/`
      of its newest finished stage);
    - `RUN`, the name of a run in `runs_dir`, which stands for its directory;
    - `RUN/STAGE`, with the stage's name or its directory's name, which stands for the stage's directory;
    - `RUN/STAGE/release`, the stage's release, which stands for its `final/`;
    - `RUN/STAGE/NAME` or `RUN/STAGE/release/NAME`, a checkpoint in that directory: `initial`, `final`, `step_...`.

    Raises CheckpointError with what there is instead.
    """
    path = Path(reference)
    if _exists(path):
        checkpoint, why = _in_directory(path, runs_dir)
    else:
        checkpoint, why = _by_name(path, runs_dir)
    if checkpoint != path:
        tell(f"using {checkpoint}{why}")
    return checkpoint


def find_in_run(run: str, inside: str | None, runs_dir: Path) -> Path:
    """The checkpoint at `RUN` or `RUN/INSIDE`; raises CheckpointError as `find_named` does."""
    return _by_name(runs_dir / run / (inside or ""), runs_dir)[0]


def find_named(name: str, runs_dir: Path) -> Path:
    """The checkpoint at `RUN`, `RUN/STAGE` and so on, as `find_checkpoint` finds them, but never at a path.

    Raises CheckpointError with what there is instead.
    """
    return _by_name(Path(name), runs_dir)[0]


def dataset_of(checkpoint: Path, given: Path | None, runs_dir: Path) -> Path:
    """The dataset `given`, or else the checkpoint's training dataset, found above the checkpoint or in `runs_dir`.

    Raises UserError if there is none, or if `given` is damaged or cannot be read with the checkpoint's vocabulary.
    """
    from stages.data.dataset import verify_dataset
    from stages.data.errors import DataError  # slow, and finding a checkpoint must not be

    manifest = read_manifest(checkpoint)
    if given is not None:
        from stages.grow.compare import require_readable  # imports torch

        require_readable(given, checkpoint, manifest)
        verify_dataset(given, hashes=False)
        return given
    fingerprint = manifest.dataset_fingerprint
    here = RunsPaths(runs_dir)
    above = [RunsPaths(folder) for folder in checkpoint.resolve().parents]
    for dataset in (path.parent for runs in (*above, here) for path in runs.dataset_manifests()):
        try:
            if verify_dataset(dataset, hashes=False).fingerprint == fingerprint:
                return dataset
        except DataError:
            continue
    sought = f"with the fingerprint {fingerprint[:12]}... of {checkpoint}" if fingerprint else f"named by {checkpoint}"
    raise UserError(
        f"there is no dataset {sought}, neither in a {here.datasets.name} above it nor in {here.datasets}; give one "
        "with --data DIR (`growctl prepare SCHEDULE` prepares it and prints its path)"
    )


def _exists(path: Path) -> bool:
    """Whether there is something at `path`. Raises OSError if that cannot be found out."""
    try:
        path.stat()
    except OSError as error:
        if error.errno not in NO_SUCH_PATH:
            raise
        return False
    return True


def _in_directory(path: Path, runs_dir: Path) -> tuple[Path, str]:
    """The checkpoint at the path of a checkpoint, stage or run, and why it is this one."""
    if not path.is_dir():
        raise CheckpointError(f"{path} is a file; a checkpoint is a directory with a {MANIFEST_NAME}")
    if (path / MANIFEST_NAME).is_file():
        return path, ""
    run, stage = RunPaths(path), StagePaths(path)
    if run.exists():
        return _newest_of_run(run)
    if stage.spec.is_file() or stage.checkpoint_names():
        return _final_of_stage(stage)
    _check_written(path)
    if is_checkpoint_name(path.name) or (path / parameter_file("any")).parent.is_dir():
        raise CheckpointError(f"{path} is not a complete checkpoint: it has no {MANIFEST_NAME}")
    names = [other.directory.name for other in RunsPaths(path).all_runs()]
    if names:
        raise CheckpointError(f"{path} is a runs directory; name one of its runs: {_listed(names)}")
    run = RunsPaths(runs_dir).run(path.name)
    hint = f"; for the run of that name, give {run.directory}" if len(path.parts) == 1 and run.exists() else ""
    raise CheckpointError(f"{path} is not a checkpoint, a stage or a run: it has no {MANIFEST_NAME}{hint}")


def _by_name(reference: Path, runs_dir: Path) -> tuple[Path, str]:
    """The checkpoint at `RUN`, `RUN/STAGE`, `RUN/STAGE/NAME` and so on below `runs_dir`, and why it is this one."""
    _check_written(reference)
    inside = reference.relative_to(runs_dir) if reference.is_relative_to(runs_dir) else reference
    release = StagePaths(Path()).release.directory.name
    may_name_one = len(inside.parts) in (1, 2, 3) or (len(inside.parts) == 4 and inside.parts[2] == release)
    if inside.is_absolute() or ".." in inside.parts or not may_name_one:
        raise CheckpointError(f"{reference} does not exist")
    name, *rest = inside.parts
    names = [run.directory.name for run in RunsPaths(runs_dir).all_runs()]
    if name not in names:
        hint = did_you_mean(name, names) or (f"; its runs are {_listed(names)}" if names else ", which holds no runs")
        raise CheckpointError(f"{reference} is neither a path nor a run in {runs_dir}{hint}")
    run = RunsPaths(runs_dir).run(name)
    if not rest:
        return _newest_of_run(run)
    stage, names = _stage(run, rest[0]), rest[1:]
    if names[:1] == [release] and stage.release.directory.is_dir():
        stage, names = stage.release, names[1:]
    if not names:
        return _final_of_stage(stage)
    checkpoint = stage.directory.joinpath(*names)
    if not _exists(checkpoint):
        _check_written(checkpoint)
        known = [*stage.checkpoint_names(), *([release] if stage.release.directory.is_dir() else [])]
        has = f"has {_listed(known)}" if known else "has no checkpoint yet"
        what = "release" if stage.directory.name == release else "stage"
        raise CheckpointError(f"{checkpoint} does not exist: the {what} {has}{did_you_mean(names[0], known)}")
    return checkpoint, ""


def _check_written(path: Path) -> None:
    """Raises CheckpointError if a checkpoint is being written at `path`, or was left unfinished."""
    if path.name and _exists(staging_directory(path)):
        raise CheckpointError(f"{path} {why_unfinished(staging_directory(path))}")


def _stage(run: RunPaths, name: str) -> StagePaths:
    """The stage of `run` with the name `name`, or the directory's name `name`."""
    stages = list(run.stages_found())
    for _, stage_name, stage in stages:
        if name in (stage_name, stage.directory.name):
            return stage
    names = [stage_name for _, stage_name, _ in stages]
    if not names:
        raise CheckpointError(f"the run {run.directory} has no stage yet")
    raise CheckpointError(
        f"the run {run.directory} has no stage {name!r}; it has {', '.join(names)}{did_you_mean(name, names)}"
    )


def _newest_of_run(run: RunPaths) -> tuple[Path, str]:
    stages = list(run.stages_found())
    later = ""
    for _, name, stage in reversed(stages):
        if (stage.final / MANIFEST_NAME).is_file():
            return stage.final, f", the newest finished stage of the run {_name(run.directory)}{later}"
        later = f" (stage {name} is not finished)"
    if not stages:
        raise CheckpointError(f"the run {run.directory} has no checkpoint yet: none of its stages has started")
    newest = stages[-1][-1]
    has = _what_it_has(newest)
    raise CheckpointError(f"no stage of the run {run.directory} is finished; {newest.directory.name} {has}")


def _final_of_stage(stage: StagePaths) -> tuple[Path, str]:
    if (stage.final / MANIFEST_NAME).is_file():
        return stage.final, ", the result of the stage"
    raise CheckpointError(f"the stage {stage.directory} is not finished; it {_what_it_has(stage)}")


def _what_it_has(stage: StagePaths) -> str:
    """The checkpoints of an unfinished stage, for a message."""
    found = stage.checkpoint_names()
    return f"has {_listed(found)}; name one: {stage.directory / found[-1]}" if found else "has no checkpoint yet"


def _name(run: Path) -> str:
    return run.name or run.resolve().name


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN_RUNS} more" if len(names) > SHOWN_RUNS else ""
    return ", ".join(names[:SHOWN_RUNS]) + more
