"""What device memory and checkpoints need with DeepSpeed's Muon, as differences to AdamW.

Imports no torch.

Measured with DeepSpeed 0.19.8, for M elements in Muon's matrices on w ranks:

| engine | momentum in place of two moments | in addition |
|---|---|---|
| ZeRO-1 in bf16 | -4 M/w | |
| ZeRO-1 and 2 in float32 | none: it is kept twice | the updates, 4 M/w, at the end of the backward pass |
| ZeRO-3 | -4 M/w | buffers that gather gradients and momentum; a float32 bucket in bf16 |

The update of a matrix needs a few copies of it for the Newton-Schulz iterations.
"""

import math
from typing import NamedTuple, Self

from model.activation_memory import FLOAT32
from model.config import TokenformerConfig, TransformerConfig, parameter_shapes
from model.parameter_names import OptimizerName, generation_of, group_kind
from model.precision import DeviceType
from stages.spec import ZeroStage

ITERATED = 3
"""Float32 copies of a matrix that its Newton-Schulz iterations need."""

CACHED_BYTES = 256 * 2**20
"""DeepSpeed's limit for the buffers that ZeRO-3 keeps for gathering."""


def muon_elements(config: TokenformerConfig | TransformerConfig, optimizer: OptimizerName) -> int:
    """The number of elements that Muon updates."""
    return sum(_Matrices.of(config).groups) if optimizer == "muon" else 0


class Difference(NamedTuple):
    """Bytes on each device beyond those with AdamW; device_memory.py explains the fields."""

    optimizer: int = 0
    gradients: int = 0
    resting: int = 0
    reducing: int = 0
    updating: int = 0


def muon_difference(
    config: TokenformerConfig | TransformerConfig,
    *,
    zero_stage: ZeroStage,
    world_size: int,
    parameter_bytes: int,
    bucket: int,
    device: DeviceType,
) -> Difference:
    """What Muon changes in an engine without offloading whose parameters take `parameter_bytes` each.

    `bucket` is the number of elements in the reduction buffer.
    """
    matrices = _Matrices.of(config)
    share = FLOAT32 * math.ceil(sum(matrices.groups) / world_size)
    iterations = ITERATED * FLOAT32 * matrices.largest
    if zero_stage == 3:
        return _zero_3(matrices, share, iterations, world_size, parameter_bytes, bucket, device)
    if zero_stage == 1 and parameter_bytes < FLOAT32:
        return Difference(optimizer=-share, updating=iterations + 2 * FLOAT32 * matrices.largest)
    return Difference(reducing=share + iterations, updating=share)


class _Matrices(NamedTuple):
    groups: tuple[int, ...]
    """Elements of each of Muon's parameter groups."""

    largest: int

    @classmethod
    def of(cls, config: TokenformerConfig | TransformerConfig) -> Self:
        groups: dict[int, int] = {}
        largest = 0
        for name, shape in parameter_shapes(config).items():
            if group_kind(name, len(shape), "muon") == "muon":
                size, generation = math.prod(shape), generation_of(name)
                groups[generation] = groups.get(generation, 0) + size
                largest = max(largest, size)
        return cls(tuple(groups.values()), largest)


def _zero_3(
    matrices: _Matrices, share: int, iterations: int, world_size: int, b: int, bucket: int, device: DeviceType
) -> Difference:
    chunks = {min(bucket, size) for size in matrices.groups}  # it gathers a bucketful at a time
    gathered = 2 * FLOAT32 * max(chunks, default=0)
    buffers = [FLOAT32 * (chunk + math.ceil(chunk / world_size)) for chunk in chunks] if world_size > 1 else []
    cached = min(CACHED_BYTES, sum(size for size in buffers if size <= CACHED_BYTES))
    passing = max((size for size in buffers if size > CACHED_BYTES), default=0)
    wider = (FLOAT32 - b) * bucket
    reduced = FLOAT32 * math.ceil(bucket / world_size)  # what a rank keeps of a bucket, which it need not cast now
    overlapping = wider - (reduced if b < FLOAT32 else 0)
    if device != "cpu":
        overlapping = FLOAT32 * bucket - max(b * bucket, reduced)
    return Difference(
        optimizer=-share,
        gradients=cached + wider,
        resting=cached + wider,
        reducing=wider + overlapping,
        updating=gathered + passing + iterations,
    )
