"""Bytes of a device while a stage trains, by part, and of its checkpoints. No torch here.

What DeepSpeed 0.19.8 keeps, as stages/engine/engine.py starts it, for P parameters of b bytes (2 in bf16, 4 in
float32) on w ranks, and R elements in the buffer that gradients are reduced in:

| engine | parameters | gradients between micro-batches | more in the backward pass |
|---|---|---|---|
| ZeRO-1 in bf16 | b P | 4 P accumulated | one parameter's, b and 4 bytes an element |
| ZeRO-1 in fp32, or offloaded | b P | 4 P accumulated, 4 R | |
| ZeRO-2 | b P | 4 P/w accumulated | b R |
| ZeRO-3 | b P/w, and what is gathered | 4 P/w accumulated, b R | |

and 12 P/w of master weights and moments, which offloading moves to the host (with ZeRO-3's accumulated gradients).
A step of a single micro-batch has less alive at once than the steps of several that this describes.
"""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

from model.activation_memory import FLOAT32, evaluation_bytes, model_bytes
from model.config import TokenformerConfig, TransformerConfig, parameter_shapes
from model.parameter_names import generation_of
from model.precision import BYTES, DeviceType, Precision
from stages.spec import Offload, ZeroStage

REDUCE_BUCKET = 500_000_000
"""DeepSpeed's default for the elements of the buffer that gradients are reduced in."""

LIVE_PARAMETERS = 1_000_000_000
"""DeepSpeed's default for the elements that ZeRO-3 keeps gathered, beside what autograd holds on to."""

FETCHED_AHEAD = 50_000_000
"""DeepSpeed's default for the elements that ZeRO-3 gathers ahead at most, in a buffer that is then taken apart."""

PERSISTENT_PARAMETER = 100_000
"""DeepSpeed's default for the elements of a parameter that ZeRO-3 keeps gathered for good, at most."""


@dataclass(frozen=True)
class Memory:
    """Bytes of one device at the fullest moment of a stage, by part."""

    parameters: int
    """As the model computes with them; under ZeRO-3 with those that are gathered."""

    gradients: int
    """As they are between the micro-batches of a step, with the buffers that last as long."""

    optimizer: int
    """Float32 master weights and Adam's two moments."""

    activations: int
    """What autograd keeps for the backward pass."""

    temporary: int
    """What the fullest moment has more: in the loss or a layer's backward pass; or, where that comes to more without
    the activations, in the gradients' reduction, the update, or the evaluation at the end of the stage."""

    host: int = 0
    """Bytes of the host's memory for each device (offloading); no part of the total."""

    @property
    def total(self) -> int:
        """The device's bytes."""
        return self.parameters + self.gradients + self.optimizer + self.activations + self.temporary


def engine_checkpoint_bytes(num_parameters: int, zero_stage: ZeroStage, precision: Precision) -> int:
    """A checkpoint within a stage, all ranks' files: masters and moments, and but for ZeRO-3 the model's weights."""
    return num_parameters * (3 * FLOAT32 + (0 if zero_stage == 3 else BYTES[precision]))


def parameters_checkpoint_bytes(num_parameters: int) -> int:
    """A checkpoint at the end of a stage: the value and both moments of every parameter in float32."""
    return num_parameters * 3 * FLOAT32


def reduce_bucket(num_parameters: int) -> int:
    """Elements of the buffer that gradients are reduced in. DeepSpeed allocates all of it, however small the model."""
    return min(num_parameters, REDUCE_BUCKET)


class TrainingMemory:
    """What training a model takes of each device, worked out once for micro-batches of every size."""

    def __init__(
        self,
        config: TokenformerConfig | TransformerConfig,
        *,
        zero_stage: ZeroStage,
        world_size: int,
        precision: Precision,
        sequence_length: int,
        offload: Offload = "none",
        device: DeviceType = "cuda",
    ) -> None:
        self._sequence_length = sequence_length
        self._sizes = _Sizes.of(config, world_size)
        self._engine = _engine(self._sizes, zero_stage, precision, offload, device)
        self._model = model_bytes(config, precision, device)
        self._config, self._device = config, device

    def of(self, micro_batch_size: int) -> Memory:
        """Bytes with `micro_batch_size` sequences at a time."""
        sizes, engine = self._sizes, self._engine
        training = self._model.of(micro_batch_size, self._sequence_length)
        # The first reduction comes when the bucket is full, with the activations of the layers that are still to come.
        waiting = round(training.activations * (1 - sizes.bucket / sizes.total))
        # The end of the stage is evaluated with a plain model in float32, beside the engine at rest.
        num_tokens = micro_batch_size * self._sequence_length
        evaluation = FLOAT32 * sizes.total + evaluation_bytes(self._config, num_tokens, self._device)
        moments = (
            engine.forward,
            training.at_loss,
            training.in_blocks + engine.backward,
            engine.backward + engine.reducing + waiting - training.activations,
            engine.updating - training.activations,
            evaluation + engine.resting - engine.gradients - training.activations,
        )
        return Memory(
            parameters=engine.parameters,
            gradients=engine.gradients,
            optimizer=engine.optimizer,
            activations=training.activations,
            temporary=max(moments),
            host=engine.host,
        )


class _Sizes(NamedTuple):
    """Elements."""

    total: int
    """Parameters, P."""

    shard: int
    """One rank's share of them."""

    largest: int
    """The largest parameter."""

    groups: tuple[int, ...]
    """Parameter groups, as stages/engine/engine.py makes them."""

    bucket: int
    persistent: int
    """Parameters so small that ZeRO-3 keeps them gathered."""

    @classmethod
    def of(cls, config: TokenformerConfig | TransformerConfig, world_size: int) -> "_Sizes":
        """Those of `config`."""
        shapes = parameter_shapes(config)
        counts = {name: math.prod(shape) for name, shape in shapes.items()}
        groups: dict[tuple[int, bool], int] = {}
        for name, shape in shapes.items():
            key = generation_of(name), len(shape) < 2
            groups[key] = groups.get(key, 0) + counts[name]
        total = sum(counts.values())
        return cls(
            total=total,
            shard=math.ceil(total / world_size),
            largest=max(counts.values()),
            groups=tuple(size for _, size in sorted(groups.items())),
            bucket=reduce_bucket(total),
            persistent=sum(count for count in counts.values() if count <= PERSISTENT_PARAMETER),
        )

    @property
    def masters(self) -> int:
        """Bytes of a rank's float32 masters and their two moments."""
        return 3 * FLOAT32 * self.shard

    @property
    def gathered(self) -> int:
        """What ZeRO-3 gathers at most, and keeps until the backward pass is done with it. One rank has it all."""
        return min(self.total, LIVE_PARAMETERS) if self.shard < self.total else 0

    @property
    def released(self) -> int:
        """What ZeRO-3 lets go of by the time that the bucket is full: as much of what was gathered."""
        return max(0, self.gathered - self.persistent) * self.bucket // self.total

    @property
    def reduced_at_once(self) -> tuple[int, bool]:
        """What BF16_Optimizer reduces at once at most, and whether it joins groups for it: until above the bucket."""
        most, joined, elements, members = 0, False, 0, 0
        for group in self.groups:
            elements, members = elements + group, members + 1
            if elements > most:
                most, joined = elements, members > 1
            if elements > REDUCE_BUCKET:
                elements, members = 0, 0
        return most, joined


@dataclass(frozen=True)
class _Engine:
    """What DeepSpeed keeps around a pass, in bytes. What it has more for a moment was measured, operation by operation
    (tests/stages/engine/test_device_memory.py)."""

    parameters: int
    optimizer: int
    gradients: int
    """Between the micro-batches of a step."""

    resting: int
    """The same when no step is going on; under ZeRO-3 less what was gathered."""

    forward: int = 0
    """More, in the forward pass."""

    backward: int = 0
    """More, in the backward pass of the blocks."""

    reducing: int = 0
    """More than that, where gradients are reduced."""

    updating: int = 0
    """More than `gradients`, in the update; below 0 where those are gone by then."""

    host: int = 0


def _engine(
    sizes: _Sizes, zero_stage: ZeroStage, precision: Precision, offload: Offload, device: DeviceType
) -> _Engine:
    b = BYTES[precision]
    if zero_stage == 3:
        engine = _zero_3(sizes, b, device)
    elif zero_stage == 2:
        engine = _zero_2(sizes, b)
    elif b < FLOAT32 and offload == "none":
        return _zero_1_bf16(sizes, b)
    else:
        engine = _zero_1(sizes, b)
    return engine if offload == "none" else _offloaded(engine, sizes, b, zero_stage)


def _zero_1_bf16(sizes: _Sizes, b: int) -> _Engine:
    """BF16_Optimizer: gradients are summed in float32 on every rank as they come, and reduced as copies in bf16."""
    most, joined = sizes.reduced_at_once
    coming = (b + FLOAT32) * sizes.largest
    return _Engine(
        parameters=b * sizes.total,
        optimizer=sizes.masters,
        gradients=FLOAT32 * sizes.total,
        resting=FLOAT32 * sizes.total,
        backward=coming,
        reducing=(FLOAT32 * joined + b) * most - coming,
    )


def _zero_1(sizes: _Sizes, b: int) -> _Engine:
    """Gradients are summed where autograd leaves them; at the last micro-batch they move through the bucket."""
    gradients, share = FLOAT32 * (sizes.total + sizes.bucket), FLOAT32 * sizes.shard
    return _Engine(
        parameters=b * sizes.total,
        optimizer=sizes.masters,
        gradients=gradients,
        resting=0,
        reducing=share,
        updating=2 * share - gradients,
    )


def _zero_2(sizes: _Sizes, b: int) -> _Engine:
    """Gradients are reduced in every backward pass, and a rank sums its share of them."""
    bucket, share = b * sizes.bucket, FLOAT32 * sizes.shard
    # In float32 they are moved once more, to lie together; else they are cast one by one.
    moved, cast = (0, FLOAT32 * sizes.largest) if b < FLOAT32 else (share, 0)
    return _Engine(
        parameters=b * sizes.total,
        optimizer=sizes.masters,
        gradients=share,
        resting=0,
        backward=bucket,
        reducing=bucket + moved + cast,
        updating=moved,
    )


def _zero_3(sizes: _Sizes, b: int, device: DeviceType) -> _Engine:
    """As ZeRO-2, with a bucket that lasts, and parameters that are gathered for a pass."""
    bucket, share, gathered = b * sizes.bucket, FLOAT32 * sizes.shard, b * sizes.gathered
    reduced = FLOAT32 * sizes.bucket * sizes.shard // sizes.total
    fetched = b * min(sizes.gathered, FETCHED_AHEAD)
    held, overlapping = 0, max(bucket, reduced)
    if device == "cpu":
        # gloo's thread may still hold a collective's buffers while the rank goes on: what was fetched ahead, and,
        # while the rank casts what came of a reduction, the copy of the bucket that gloo reduces.
        held, overlapping = fetched, bucket + (reduced if b < FLOAT32 else 0)
    return _Engine(
        parameters=b * sizes.shard + gathered,
        optimizer=sizes.masters,
        gradients=share + bucket,
        resting=share + bucket - gathered,
        forward=fetched,
        backward=held,
        reducing=bucket + overlapping - b * sizes.released - held,
        updating=share - gathered,
    )


def _offloaded(engine: _Engine, sizes: _Sizes, b: int, zero_stage: ZeroStage) -> _Engine:
    """Masters, moments and their gradients on the host, with a buffer of the largest parameter on either side."""
    share, buffer = FLOAT32 * sizes.shard, b * sizes.largest
    host = sizes.masters + share
    if zero_stage == 3:
        gradients, host = b * sizes.bucket, host + share
    elif zero_stage == 2 and b == FLOAT32:
        gradients, host = buffer, host + b * sizes.shard + buffer + share
    else:
        gradients, host = engine.gradients + buffer, host + b * sizes.shard + buffer
    resting = engine.resting - (engine.gradients - gradients if zero_stage == 3 else 0)
    return replace(engine, optimizer=0, gradients=gradients, resting=resting, updating=0, host=host)
