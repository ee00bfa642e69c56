"""Finds the dataset that a checkpoint was trained on."""

from pathlib import Path

from growctl.runs_dir import RunsPaths
from model.errors import UserError
from stages.checkpoint.manifest import read_manifest
from stages.data.dataset import verify_dataset
from stages.data.errors import DataError


def dataset_of(checkpoint: Path, given: Path | None, runs_dir: Path) -> Path:
    """The dataset `given`, or else the checkpoint's training dataset, found above the checkpoint or in `runs_dir`.

    Raises UserError if there is none, or if `given` is damaged or cannot be read with the checkpoint's vocabulary.
    """
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
