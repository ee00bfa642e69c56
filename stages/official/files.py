"""Opens the weights of official checkpoints: `.bin`, `.safetensors`, or shards as DeepSpeed's zero_to_fp32.py writes.

Tensors are memory-mapped, so that opening a model reads only its tables of contents. Pickles are read with
`weights_only`, which runs no code.
"""

import json
import pickle
import re
import shlex
import warnings
import zipfile
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from stages.checkpoint.manifest import CheckpointError

WHOLE = ("pytorch_model.bin", "model.safetensors")
"""The file that zero_to_fp32.py writes without and with --safe_serialization; a larger model's shards have an index."""

INDEX_SUFFIX = ".index.json"

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
"""The types of values that growctl imports, all of which float32 holds exactly."""

_MODEL_FILES = tuple(name for whole in WHOLE for name in (whole, whole + INDEX_SUFFIX))

_DEEPSPEED_FILE = re.compile(r"(mp_rank_\d+_.*|(bf16_|fp16_)?zero_pp_rank_.*|layer_\d+-model_.*)\.pt")
_DEEPSPEED_STEP = re.compile(r"global_step\d+")
_LFS_POINTER = b"version https://git-lfs"


def open_weights(path: Path) -> dict[str, Tensor]:
    """The tensors at `path`, memory-mapped: a file, or a directory with one file or an index of shards.

    Raises CheckpointError with one line that says what there is instead, and how to get what growctl reads.
    """
    if path.is_file():
        return _open_file(path)
    if not path.is_dir():
        raise CheckpointError(f"{path} {'is neither a file nor a directory' if path.exists() else 'does not exist'}")
    _refuse_deepspeed(path)
    found = [path / name for name in _MODEL_FILES if (path / name).is_file()]
    if len(found) > 1:
        raise CheckpointError(
            f"{path} holds several models: {found[0].name} and {found[1].name}; keep one of them there"
        )
    if not found:
        shards = sorted(file.name for file in path.iterdir() if file.suffix in (".bin", ".safetensors"))
        lacks = f"has {shards[0]}, but no index of shards" if shards else "holds no model"
        raise CheckpointError(
            f"{path} {lacks}: growctl reads {' or '.join(WHOLE)}, or their shards with pytorch_model.bin{INDEX_SUFFIX} "
            f"or model.safetensors{INDEX_SUFFIX}, as DeepSpeed's zero_to_fp32.py writes them"
        )
    return _open_shards(found[0]) if found[0].name.endswith(INDEX_SUFFIX) else _open_file(found[0])


def refuse_lfs_pointer(path: Path) -> None:
    """Raises CheckpointError if git cloned only a pointer to the file at `path`."""
    with path.open("rb") as file:
        if file.read(len(_LFS_POINTER)) == _LFS_POINTER:
            raise CheckpointError(
                f"{path} is a Git-LFS pointer, not the file itself; fetch it with `git lfs pull` in its repository"
            )


def _open_shards(index: Path) -> dict[str, Tensor]:
    """The tensors of all shards that `index` lists. Each must be in the shard that it names, and nowhere else."""
    refuse_lfs_pointer(index)
    try:
        weight_map = json.loads(index.read_text())["weight_map"]
        shards = {str(shard): {key for key in weight_map if weight_map[key] == shard} for shard in weight_map.values()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{index} is not an index of shards: it has no weight_map of names and files") from error
    tensors: dict[str, Tensor] = {}
    for name, listed in sorted(shards.items()):
        shard = index.parent / name
        if Path(name).name != name:
            raise CheckpointError(f"{index} names the shard {name!r}; a shard is a file beside its index")
        if not shard.is_file():
            raise CheckpointError(f"{shard} is missing, which {index.name} lists")
        found = _open_file(shard)
        if listed ^ set(found):
            key = min(listed ^ set(found))
            what = f"lacks {key}, which" if key in listed else f"has {key}, which is not what"
            raise CheckpointError(f"{shard} {what} {index.name} lists there")
        tensors |= found
    return tensors


def _open_file(path: Path) -> dict[str, Tensor]:
    refuse_lfs_pointer(path)
    if _DEEPSPEED_FILE.fullmatch(path.name):
        raise _merge_first(path, "is one of DeepSpeed's own shards", path.absolute().parents[1])
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
    if isinstance(state, dict) and isinstance(state.get("module"), dict):
        raise _merge_first(path, "is a training state of DeepSpeed: its weights are in 'module', in low precision")
    if not isinstance(state, dict) or not all(
        isinstance(key, str) and isinstance(value, Tensor) for key, value in state.items()
    ):
        raise CheckpointError(f"{path} is not an official checkpoint: it does not consist of named tensors")
    return state


def _read(path: Path) -> Any:
    """What the file at `path` holds, memory-mapped where its format allows that."""
    if path.suffix == ".safetensors":
        return safetensors.torch.load_file(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about types of storage that a damaged file names
        return torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))


def _refuse_deepspeed(directory: Path) -> None:
    """Raises CheckpointError if `directory` is one that DeepSpeed saves to, or one of its steps."""
    names = sorted(path.name for path in directory.iterdir())
    if any(_DEEPSPEED_FILE.fullmatch(name) for name in names):
        raise _merge_first(directory, "holds DeepSpeed's own shards", directory.absolute().parent)
    if any(_DEEPSPEED_STEP.fullmatch(name) for name in names) and not any(
        (directory / name).is_file() for name in _MODEL_FILES
    ):
        raise _merge_first(directory, "holds DeepSpeed's own shards", directory)


def _merge_first(path: Path, what: str, saved: Path | None = None) -> CheckpointError:
    """An error with the command that merges what DeepSpeed saved in the directory `saved`."""
    folder = Path("CHECKPOINTS") if saved is None else saved
    command = shlex.join(["python", str(folder / "zero_to_fp32.py"), str(folder), "MERGED"])
    return CheckpointError(
        f"{path} {what}; merge the shards into float32 weights first: {command} (DeepSpeed puts the script there), "
        "then import MERGED"
    )
