"""Writes a mixture: a directory that names several prepared datasets, and is read like one.

    <datasets_dir>/mixture-<key>/
        tokenizer.json    the one that all sources share
        manifest.json     the sources: their names, paths, fingerprints and base weights; the sums of their splits

The key is a hash of the manifest's sources, so each mixture is written once and then reused.
"""

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from stages.checkpoint.directory import publish_directory, set_aside, whole_directory
from stages.checkpoint.disk_full import raise_when_full
from stages.checkpoint.files import write_file
from stages.corpus.prepared import locked
from stages.corpus.tasks import Progress
from stages.data.dataset import (
    FORMAT_VERSION,
    DatasetManifest,
    MixtureEntry,
    dataset_manifest_bytes,
    joined_splits,
    mixture_fingerprint,
    read_dataset_manifest,
    require_one_tokenizer,
    require_tokenizer,
)
from stages.data.errors import DataError
from stages.data.spec import SPLITS
from stages.stage_dir import MANIFEST_NAME, MIXTURE_PREFIX, TOKENIZER_NAME


class Ingredient(NamedTuple):
    """A prepared dataset, as a source of a mixture."""

    name: str
    dataset: Path
    weight: float
    """Its base weight, in any unit."""

    epochs_at_most: float | None = None
    """How often training may read it; None: as often as needed."""


def write_mixture(ingredients: Sequence[Ingredient], datasets_dir: Path) -> Path:
    """Writes the mixture of prepared datasets into `datasets_dir`, or finds it. Returns its directory.

    A damaged mixture is set aside and written again. Raises DataError if a dataset cannot be read, is a mixture itself,
    or has another tokenizer than the first, and DiskFull if the disk is full.
    """
    manifests = {each.name: read_dataset_manifest(each.dataset) for each in ingredients}
    for each in ingredients:
        if manifests[each.name].sources:
            raise DataError(f"data.mixture: {each.name!r} ({each.dataset}) is a mixture itself; name its sources")
    require_one_tokenizer({each.name: each.dataset for each in ingredients})
    beside = datasets_dir.resolve()
    entries = tuple(
        MixtureEntry(
            name=each.name,
            directory=str(path.relative_to(beside) if path.is_relative_to(beside) else path),
            fingerprint=manifests[each.name].fingerprint,
            weight=each.weight,
            epochs_at_most=each.epochs_at_most,
        )
        for each in ingredients
        for path in [each.dataset.resolve()]
    )
    first, *_ = manifests.values()
    manifest = DatasetManifest(
        format_version=FORMAT_VERSION,
        spec=first.spec.model_copy(update={"source": ", ".join(manifests)}),
        vocab_size=first.vocab_size,
        token_bytes=first.token_bytes,
        tokenizer_sha256=first.tokenizer_sha256,
        end_of_text_id=first.end_of_text_id,
        splits={name: joined_splits([each.splits[name] for each in manifests.values()]) for name in SPLITS},
        sources=entries,
        fingerprint=mixture_fingerprint(entries),
    )
    key = json.dumps([entry.model_dump(mode="json") for entry in entries])
    target = datasets_dir / f"{MIXTURE_PREFIX}{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    if not _is_there(target):
        with raise_when_full(datasets_dir), locked(target, Progress()):
            if not _is_there(target):
                if target.exists():
                    set_aside(target)
                with whole_directory(target) as staging:
                    write_file(staging / TOKENIZER_NAME, (ingredients[0].dataset / TOKENIZER_NAME).read_bytes())
                    write_file(staging / MANIFEST_NAME, dataset_manifest_bytes(manifest))
                    publish_directory(target)
    return target


def _is_there(target: Path) -> bool:
    with suppress(DataError):
        require_tokenizer(target, read_dataset_manifest(target))
        return True
    return False
