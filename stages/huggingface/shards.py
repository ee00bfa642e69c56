"""Writes tensors as safetensors files of limited size, with the index that Transformers reads."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import safetensors.torch
import torch
from huggingface_hub import split_torch_state_dict_into_shards
from torch import Tensor

from stages.checkpoint.files import write_file

INDEX_NAME = "model.safetensors.index.json"


class LazyTensor(NamedTuple):
    """A tensor of an export, computed when its file is written."""

    shape: tuple[int, ...]
    value: Callable[[], Tensor]


def write_shards(
    directory: Path, tensors: Mapping[str, LazyTensor], dtype: torch.dtype, max_shard_bytes: int
) -> list[str]:
    """Writes `tensors` in `dtype` below `directory`, as one file or as several with an index. Returns their names.

    A tensor larger than `max_shard_bytes` gets a file of its own. Raises OSError if a file cannot be written.
    """
    planned = {name: torch.empty(tensor.shape, dtype=dtype, device="meta") for name, tensor in tensors.items()}
    split = split_torch_state_dict_into_shards(planned, max_shard_size=max_shard_bytes)
    for file, names in split.filename_to_tensors.items():
        values = {name: tensors[name].value().detach().to("cpu", dtype).contiguous() for name in names}
        write_file(directory / file, safetensors.torch.save(values, metadata={"format": "pt"}))
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        write_file(directory / INDEX_NAME, json.dumps(index, indent=2).encode())
    return sorted(split.filename_to_tensors)


def total_bytes(tensors: Mapping[str, LazyTensor], dtype: torch.dtype) -> int:
    """The size of all tensors in `dtype`."""
    return sum(torch.Size(tensor.shape).numel() for tensor in tensors.values()) * dtype.itemsize
