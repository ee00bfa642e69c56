"""Prepared datasets in a runs directory, found by what they were made from. Reads manifests only, and no network."""

import json
from pathlib import Path
from typing import Any

from growctl.schema.blocks import DataBlock
from stages.data.corpus import DataSpec

DATASETS = ".datasets"
"""Prepared datasets lie here below the runs directory, shared by its runs; no run's name starts with a dot."""


def training_tokens(data: DataBlock, runs_dir: Path | None) -> int | None:
    """Training tokens of `data`: of its newest prepared dataset, else `data.approximate_tokens`, else None."""
    if runs_dir is None:
        return data.approximate_tokens
    wanted = _determining(data.model_dump(mode="json"))
    for manifest in sorted((runs_dir / DATASETS).glob("*/manifest.json"), key=_age):
        try:
            document = json.loads(manifest.read_bytes())
            if _determining(document["spec"]) == wanted:
                return int(document["splits"]["train"]["num_tokens"])
        except (OSError, ValueError, LookupError, TypeError, OverflowError, RecursionError):
            continue  # `prepare` will set it aside with a message
    return data.approximate_tokens


def _determining(spec: dict[str, Any]) -> dict[str, Any]:
    """What of a data block decides what is in a dataset."""
    return {name: spec[name] for name in DataSpec.model_fields if name != "workers"}


def _age(manifest: Path) -> float:
    return -manifest.stat().st_mtime
