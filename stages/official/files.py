"""Opens the weights of official checkpoints: `.bin`, `.safetensors`, or shards as DeepSpeed's zero_to_fp32.py writes.

Tensors are memory-mapped, so that opening a model reads only its tables of contents. Pickles are read with
`weights_only`, which runs no code.
"""

import json
import pickle
import warnings
import zipfile
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from stages.checkpoint.manifest import CheckpointError

INDEX_SUFFIX = ".index.json"
MODEL_FILES = tuple(
    name + suffix for name in ("pytorch_model.bin", "model.safetensors") for suffix in ("", INDEX_SUFFIX)
)
"""What zero_to_fp32.py writes without and with --safe_serialization; a larger model's shards have an index."""

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
"""The types of values that growctl imports, all of which float32 holds exactly."""

_MERGE = (
    "DeepSpeed's own shards must be merged into float32 weights first, by the script that DeepSpeed puts beside them: "
    "python CHECKPOINTS/zero_to_fp32.py CHECKPOINTS MERGED"
)


def open_weights(path: Path) -> dict[str, Tensor]:
    """The tensors at `path`, memory-mapped: a file, or a directory with one file or an index of shards.

    Raises CheckpointError with one line that says what growctl reads, and how to get it.
    """
    if not path.is_dir():
        return _open_file(path)
    present = [path / name for name in MODEL_FILES if (path / name).is_file()]
    if len(present) != 1:
        names = ", ".join(file.name for file in present) or "none of them"
        raise CheckpointError(f"{path} must hold one of {', '.join(MODEL_FILES)}, but has {names}. {_MERGE}")
    return _open_shards(present[0]) if present[0].name.endswith(INDEX_SUFFIX) else _open_file(present[0])


def _open_shards(index: Path) -> dict[str, Tensor]:
    """The tensors of all shards that `index` lists. Each must be in the shard that it names, and nowhere else."""
    try:
        weight_map = json.loads(index.read_text())["weight_map"]
        shards = {Path(shard).name for shard in weight_map.values()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{index} is not an index of shards: it has no weight_map of names and files") from error
    tensors: dict[str, Tensor] = {}
    for shard in sorted(shards):
        state = _open_file(index.parent / shard)
        if wrong := state.keys() ^ {key for key in weight_map if weight_map[key] == shard}:
            raise CheckpointError(f"{index.parent / shard} does not hold what {index.name} lists there: {min(wrong)}")
        tensors |= state
    return tensors


def _open_file(path: Path) -> dict[str, Tensor]:
    try:
        state = _read(path)
    except pickle.UnpicklingError as error:
        # torch's own message goes on to explain how to load such a file anyway.
        raise CheckpointError(
            f"{path} is not a plain state dict of tensors; growctl loads nothing else, because it could run code"
        ) from error
    except Exception as error:  # a damaged pickle can raise anything
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(f"{path} cannot be opened: {reason}") from error
    if not isinstance(state, dict) or not all(
        isinstance(key, str) and isinstance(value, Tensor) for key, value in state.items()
    ):
        raise CheckpointError(f"{path} does not consist of named tensors. {_MERGE}")
    return state


def _read(path: Path) -> Any:
    """What the file at `path` holds, memory-mapped where its format allows that."""
    with path.open("rb") as file:
        if file.read(100).startswith(b"version https://git-lfs"):
            raise ValueError("it is a Git-LFS pointer, not the file itself; run `git lfs pull` in its repository")
    if path.suffix == ".safetensors":
        return safetensors.torch.load_file(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about types of storage that a damaged file names
        return torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
