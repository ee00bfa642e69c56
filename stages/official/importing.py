"""Imports an official checkpoint: every tensor is checked, and written as a `parameters` checkpoint, one at a time.

Weights are `.bin`, `.safetensors`, or shards as DeepSpeed's zero_to_fp32.py writes. They are memory-mapped, so that
opening a model reads only its tables of contents. Pickles are read with `weights_only`, which runs no code.
"""

import json
import pickle
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from model.config import TokenformerConfig, num_parameters, parameter_shapes
from stages.checkpoint.directory import finish_directory, whole_directory
from stages.checkpoint.disk_full import raise_when_full
from stages.checkpoint.files import write_file
from stages.checkpoint.lineage import ImportRecord
from stages.checkpoint.manifest import CheckpointError, Manifest, TextFacts, imported_manifest
from stages.checkpoint.parameters import write_parameters
from stages.checkpoint.pretrained import num_token_ids, parse_tokenizer, text_facts
from stages.counted import counted
from stages.official.layout import OFFICIAL_EMBEDDING, official_names, problem_of, read_settings, rotary_buffers
from stages.stage_dir import TOKENIZER_NAME

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
"""The types of values that growctl imports, all of which float32 holds exactly."""

INDEX_SUFFIX = ".index.json"
MODEL_FILES = tuple(
    name + suffix for name in ("pytorch_model.bin", "model.safetensors") for suffix in ("", INDEX_SUFFIX)
)
"""What zero_to_fp32.py writes without and with --safe_serialization; a larger model's shards have an index."""

_MERGE = (
    "DeepSpeed's own shards must be merged into float32 weights first, by the script that DeepSpeed puts beside them: "
    "python CHECKPOINTS/zero_to_fp32.py CHECKPOINTS MERGED"
)


def import_official(
    weights: Path,
    settings: Path,
    output: Path,
    *,
    tokenizer: Path | None = None,
    end_of_text: str | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Manifest:
    """Writes `output`, the official model of `weights` and its NeoX YAML `settings`, and returns its manifest.

    `weights` is what `open_weights` opens. The embedding may have more rows than `tokenizer`, a tokenizer.json that the
    checkpoint then holds, has ids. `end_of_text` names the token between documents (default: `<|endoftext|>` if the
    tokenizer has it). The checkpoint has no moments. `on_progress(done, total)` counts parameters.

    Raises CheckpointError if a tensor is missing, unknown, misshapen, not finite or not a floating-point number, if the
    settings or the tokenizer do not fit, or if `output` exists; DiskFull if there is no space. Partial output is
    deleted.
    """
    state = open_weights(weights)
    if OFFICIAL_EMBEDDING not in state or not state[OFFICIAL_EMBEDDING].dim() or not len(state[OFFICIAL_EMBEDDING]):
        raise CheckpointError(f"{weights} is not an official checkpoint: it has no {OFFICIAL_EMBEDDING} with rows")
    rows = len(state[OFFICIAL_EMBEDDING])
    described = read_settings(settings)
    try:
        config = described.model(rows)
    except ValueError as error:
        raise CheckpointError(f"{settings} does not describe a model: {problem_of(error)}") from error
    _check_tensors(state, config, weights, settings)
    document, facts = _text(tokenizer, end_of_text, rows, described.context_length)
    names = official_names(config)
    num_bytes, total = 4 * num_parameters(config), len(names)

    def values() -> Iterator[tuple[str, Tensor]]:
        for name, official in names.items():
            value = state.pop(official).float()
            if num_wrong := value.numel() - int(value.isfinite().sum()):
                raise CheckpointError(f"{weights}: {official} has {counted(num_wrong, 'value')}, NaN or infinite")
            yield name, value

    with whole_directory(output) as staging, raise_when_full(output, num_bytes):
        files = write_parameters(staging, values(), on_progress and (lambda done: on_progress(done, total)))
        if document is not None:
            files[TOKENIZER_NAME] = write_file(staging / TOKENIZER_NAME, document)
        imported = ImportRecord(layout="official", weights=weights.name)
        return finish_directory(output, imported_manifest(config, files, facts, imported))


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
    """The tensors of all shards beside `index` that it lists."""
    try:
        shards = {Path(shard).name for shard in json.loads(index.read_text())["weight_map"].values()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{index} is not an index of shards: it has no weight_map of names and files") from error
    return {name: tensor for shard in sorted(shards) for name, tensor in _open_file(index.parent / shard).items()}


def _open_file(path: Path) -> dict[str, Tensor]:
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


def _check_tensors(state: dict[str, Tensor], config: TokenformerConfig, weights: Path, settings: Path) -> None:
    """Checks that `state` has the tensors of the model and, apart from rotary frequencies, no others."""
    names, buffers = official_names(config), rotary_buffers(config)
    for name in sorted(set(state) - set(names.values()) - buffers):
        raise CheckpointError(f"{weights} has {name}, which the model in {settings} does not have")
    for ours, shape in parameter_shapes(config).items():
        name = names[ours]
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


def _text(
    tokenizer: Path | None, end_of_text: str | None, rows: int, context_length: int | None
) -> tuple[bytes | None, TextFacts]:
    """The tokenizer's document, serialised as in a dataset, and what the checkpoint records of its text."""
    facts = TextFacts(context_length=context_length, end_of_text=end_of_text)
    if tokenizer is None:
        if end_of_text is not None:
            raise CheckpointError(f"--end-of-text {end_of_text!r} needs --tokenizer, in which growctl looks up its id")
        return None, facts
    if not tokenizer.is_file():
        raise CheckpointError(f"{tokenizer} is not a file; --tokenizer names a {TOKENIZER_NAME}")
    loaded = parse_tokenizer(tokenizer.read_bytes(), tokenizer)
    if (num_ids := num_token_ids(loaded)) > rows:
        raise CheckpointError(f"{tokenizer} has {num_ids:,} token ids; the embedding has only {rows:,} rows")
    facts = text_facts(loaded, facts)
    if end_of_text is not None and facts.end_of_text is None:
        raise CheckpointError(f"--end-of-text {end_of_text!r}: the tokenizer {tokenizer} has no such token")
    return loaded.to_str(pretty=True).encode(), facts


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
