"""What other programs wrote, on its way into a `parameters` checkpoint: every tensor is checked, one at a time.

Weights are `.bin`, `.safetensors`, or shards with an index. They are memory-mapped, so that opening a model reads only
its tables of contents. Pickles are read with `weights_only`, which runs no code.
"""

import json
import pickle
import warnings
import zipfile
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from tokenizers import Tokenizer
from torch import Tensor

from model.shapes import ModelConfig, num_parameters, parameter_shapes
from stages.checkpoint.directory import finish_directory, whole_directory
from stages.checkpoint.files import write_file
from stages.checkpoint.lineage import ImportRecord
from stages.checkpoint.manifest import CheckpointError, Manifest, TextFacts, imported_manifest
from stages.checkpoint.parameters import write_parameters
from stages.checkpoint.pretrained import num_token_ids, parse_tokenizer
from stages.counted import counted
from stages.stage_dir import TOKENIZER_NAME

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
"""The types of values that growctl imports, all of which float32 holds exactly."""

INDEX_SUFFIX = ".index.json"
MODEL_FILES = tuple(
    name + suffix for name in ("model.safetensors", "pytorch_model.bin") for suffix in ("", INDEX_SUFFIX)
)
"""What libraries call a model's weights, whole or the index of its shards; safetensors first."""


def open_weights(path: Path, advice: str = "") -> dict[str, Tensor]:
    """The tensors of a file, or of all shards beside an index that it lists, memory-mapped.

    Raises CheckpointError with one line, which ends with `advice` if the file holds something else.
    """
    if not path.name.endswith(INDEX_SUFFIX):
        return _open_file(path, advice)
    try:
        shards = {Path(shard).name for shard in json.loads(path.read_text())["weight_map"].values()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path} is not an index of shards: it has no weight_map of names and files") from error
    return {name: tensor for shard in sorted(shards) for name, tensor in _open_file(path.parent / shard).items()}


def _open_file(path: Path, advice: str = "") -> dict[str, Tensor]:
    try:
        state = _read(path)
    except pickle.UnpicklingError as error:
        # torch's own message goes on to explain how to load such a file anyway.
        raise CheckpointError(
            f"{path} is not a plain state dict of tensors; growctl loads nothing else, because it could run code"
        ) from error
    except Exception as error:  # a damaged pickle can raise anything
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise CheckpointError(f"{path} cannot be opened as a state dict of tensors ({reason})") from error
    if not isinstance(state, dict) or not all(
        isinstance(key, str) and isinstance(value, Tensor) for key, value in state.items()
    ):
        raise CheckpointError(f"{path} does not consist of named tensors. {advice}".rstrip())
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


def check_tensors(
    state: Mapping[str, Tensor],
    expected: Mapping[str, tuple[int, ...]],
    ignored: Collection[str],
    weights: Path,
    settings: Path,
) -> None:
    """Checks that `state`, from `weights`, has the `expected` names and shapes and no others but those `ignored`.

    Raises CheckpointError, which names the first tensor that is not what the model in `settings` has.
    """
    for name in sorted(set(state) - set(expected) - set(ignored)):
        raise CheckpointError(f"{weights} has {name}, which the model in {settings} does not have")
    for name, shape in expected.items():
        if name not in state:
            raise CheckpointError(f"{weights}: {name} is missing")
        tensor = state[name]
        if tuple(tensor.shape) != shape:
            raise CheckpointError(f"{weights}: {name} has shape {list(tensor.shape)}, not {list(shape)}")
        if tensor.dtype not in DTYPES or tensor.layout != torch.strided or tensor.device.type != "cpu":
            raise CheckpointError(
                f"{weights}: {name} must be an ordinary tensor of {', '.join(map(_name, DTYPES))}, not of "
                f"{_name(tensor.dtype)}"
            )


def finite(value: Tensor, name: str, weights: Path) -> Tensor:
    """The tensor `name` of `weights` in float32. Raises CheckpointError if a value is NaN or infinite."""
    if num_wrong := value.numel() - int(value.isfinite().sum()):
        raise CheckpointError(f"{weights}: {name} has {counted(num_wrong, 'value')}, NaN or infinite")
    return value.float()


def fitting_tokenizer(path: Path, rows: int) -> Tokenizer:
    """The tokenizer in `path`. Raises CheckpointError if an embedding of `rows` rows lacks some of its ids."""
    tokenizer = parse_tokenizer(path.read_bytes(), path)
    if (num_ids := num_token_ids(tokenizer)) > rows:
        raise CheckpointError(f"{path} has {num_ids:,} token ids; the embedding has only {rows:,} rows")
    return tokenizer


def write_import(
    output: Path,
    config: ModelConfig,
    values: Iterable[tuple[str, Tensor]],
    tokenizer: Tokenizer | None,
    text: TextFacts,
    record: ImportRecord,
    on_progress: Callable[[int, int], None] | None = None,
) -> Manifest:
    """Writes the checkpoint `output` of the float32 `values` of all parameters, without moments; returns its manifest.

    `on_progress(done, total)` counts parameters. Raises CheckpointError if `output` exists, DiskFull if there is no
    space, and what `values` raises. Partial output is deleted.
    """
    total = len(parameter_shapes(config))
    with whole_directory(output, 4 * num_parameters(config)) as staging:
        files = write_parameters(staging, values, on_progress and (lambda done: on_progress(done, total)))
        if tokenizer is not None:
            files[TOKENIZER_NAME] = write_file(staging / TOKENIZER_NAME, tokenizer.to_str(pretty=True).encode())
        return finish_directory(output, imported_manifest(config, files, text, record))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
