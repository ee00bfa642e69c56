"""Small ranges, for tests of remote datasets."""

from pathlib import Path

from stages.data.dataset import dataset_manifest_bytes, range_hashes_of, read_dataset_manifest, shard_tokens


def with_ranges_of(dataset: Path, range_bytes: int) -> None:
    """Gives a dataset the hashes of ranges of this size, in place of those that it has."""
    manifest = read_dataset_manifest(dataset)
    splits = {}
    for name, split in manifest.splits.items():
        files = [file for file in split.files if not file.name.endswith(".ranges")]
        shards = [file for file in files if file.name.endswith(".ds")]
        files += [range_hashes_of(dataset, file.name, range_bytes) for file in shards]
        num_tokens = sum(shard_tokens(file, manifest.token_bytes) for file in shards)
        splits[name] = split.model_copy(update={"files": tuple(files), "num_tokens": num_tokens})
    changed = manifest.model_copy(update={"splits": splits, "range_bytes": range_bytes})
    (dataset / "manifest.json").write_bytes(dataset_manifest_bytes(changed))
