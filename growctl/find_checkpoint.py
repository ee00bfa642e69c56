"""Finds the checkpoint that a user names, and the dataset that it was trained on. Imports no torch."""

import os
from collections.abc import Callable
from pathlib import Path

from growctl.runs_dir import RunPaths, RunsPaths
from growctl.text.suggestion import nearest
from model.errors import UserError
from stages.checkpoint.manifest import CheckpointError, read_manifest
from stages.checkpoint.staging import why_unfinished
from stages.stage_dir import MANIFEST_NAME, TOKENIZER_NAME, StagePaths, is_checkpoint_name, staging_directory


def find_checkpoint(reference: str, runs_dir: Path, tell: Callable[[str], None]) -> Path:
    """The checkpoint directory that `reference` stands for. Unless it is the very path given, `tell` gets a line.

    `reference` is one of these, tried in this order:

    - the path of a checkpoint directory, of a stage's directory (its `final/`), or of a run's directory (the `final/`
      of its newest finished stage);
    - a name, as `find_named` finds it.

    Raises CheckpointError with what there is instead.
    """
    path = Path(reference)
    checkpoint = _checkpoint_at(path) if os.path.exists(path) else find_named(reference, runs_dir)
    if checkpoint != path:
        tell(f"using {checkpoint}")
    return checkpoint


def find_named(name: str, runs_dir: Path) -> Path:
    """The checkpoint that `name` stands for: never a path, but for one in `runs_dir` without its `stages`.

    `name` is a run, `RUN/STAGE`, with the stage's name or its directory's name, or `RUN/STAGE/NAME`, a checkpoint in
    that directory: `initial`, `final`, `step_...`. After STAGE, `/release` stands for the stage's release.

    Raises CheckpointError with what there is instead.
    """
    path = Path(name)
    _check_written(path)
    inside = path.relative_to(runs_dir) if path.is_relative_to(runs_dir) else path
    if inside.is_absolute() or ".." in inside.parts:
        raise CheckpointError(f"{name} does not exist")
    place = runs_dir
    known = {run.directory.name: run.directory for run in RunsPaths(runs_dir).all_runs()}
    for depth, part in enumerate(inside.parts):
        if part not in known:
            _check_written(place / part)
            has_not = f"{place} has no {part!r}" if depth else f"{name} is neither a path nor a run in {runs_dir}"
            raise CheckpointError(f"{has_not}; {nearest(part, known) or 'it is empty'}")
        place = known[part]
        known = _inside(place)
    return _checkpoint_at(place)


def _inside(place: Path) -> dict[str, Path]:
    """What a name can go on with: the stages of a run, or the checkpoints and the release of a stage."""
    run, stage = RunPaths(place), StagePaths(place)
    if run.exists():
        stages = [(name, found.directory) for _, name, found in run.stages_found()]
        return dict(stages) | {directory.name: directory for _, directory in stages}
    paths = [*(path.parent for path in stage.manifests()), stage.release.directory]
    return {path.name: path for path in paths if path.is_dir()}


def dataset_of(checkpoint: Path, given: Path | None, runs_dir: Path) -> Path:
    """The dataset `given`, or else the checkpoint's training dataset, found above the checkpoint or in `runs_dir`.

    Raises UserError if there is none, or if `given` is damaged or cannot be read with the checkpoint's vocabulary.
    """
    from stages.data.errors import DataError  # slow, and finding a checkpoint must not be
    from stages.images.either import verify_any_dataset

    manifest = read_manifest(checkpoint)
    if given is not None:
        from stages.grow.compare import require_readable  # imports torch

        require_readable(given, checkpoint, manifest)
        verify_any_dataset(given, hashes=False)
        return given
    fingerprint = manifest.dataset_fingerprint
    here = RunsPaths(runs_dir)
    above = [RunsPaths(folder) for folder in checkpoint.resolve().parents]
    for dataset in (path.parent for runs in (*above, here) for path in runs.dataset_manifests()):
        try:
            if verify_any_dataset(dataset, hashes=False).fingerprint == fingerprint:
                return dataset
        except DataError:
            continue
    sought = (
        f"with the fingerprint {fingerprint[:12]}... of {checkpoint}"
        if fingerprint
        else f"that {checkpoint} was trained on"
    )
    raise UserError(
        f"there is no dataset {sought}, neither in a {here.datasets.name} above it nor in {here.datasets}; give one "
        f"with --data DIR. `growctl prepare SCHEDULE data.tokenizer={checkpoint}/{TOKENIZER_NAME}` makes one with its "
        "tokenizer and prints its path"
    )


def _checkpoint_at(place: Path) -> Path:
    """The checkpoint at `place`, or the result of the stage, or of the newest finished stage of the run, there."""
    if (place / MANIFEST_NAME).is_file():
        return place
    _check_written(place)
    run = RunPaths(place)
    stages = [stage for _, _, stage in run.stages_found()] if run.exists() else [StagePaths(place)]
    for stage in reversed(stages):
        if (stage.final / MANIFEST_NAME).is_file():
            return stage.final
    if (place / "config.json").is_file():
        raise CheckpointError(
            f"{place} is a Hugging Face folder (it has a config.json); import it first: growctl import huggingface "
            f"{place} --output DIR"
        )
    found = [path.parent for stage in stages for path in stage.manifests() if is_checkpoint_name(path.parent.name)]
    raise CheckpointError(
        f"{place} has no finished stage; name a checkpoint in it, such as {found[-1]}"
        if found
        else f"{place} is not a complete checkpoint, and holds none: it has no {MANIFEST_NAME}"
    )


def _check_written(path: Path) -> None:
    """Raises CheckpointError if a checkpoint is being written at `path`, or was left unfinished."""
    if path.name and os.path.exists(staging_directory(path)):
        raise CheckpointError(f"{path} {why_unfinished(staging_directory(path))}")
