"""Device memory of a stage in training, by part, and the size of its checkpoints.

Imports no torch.

What DeepSpeed 0.19.8 allocates, configured as in stages/engine/engine.py, for P parameters of b bytes (2 in bf16, 4 in
float32) on w ranks and R elements in the reduction buffer:

| engine | parameters | gradients between micro-batches | in addition, in the backward pass |
|---|---|---|---|
| ZeRO-1 in bf16 | b P | 4 P accumulated | one parameter's gradient, b + 4 bytes per element |
| ZeRO-1 in fp32, or offloaded | b P | 4 P accumulated, 4 R | |
| ZeRO-2 | b P | 4 P/w accumulated | b R |
| ZeRO-3 | b P/w and the gathered parameters | 4 P/w accumulated, b R | |

Master weights and moments add 12 P/w. Offloading moves them to the host, with ZeRO-3's accumulated gradients.
The table describes steps of several micro-batches; a step of a single micro-batch needs less. muon_memory.py says what
Muon changes.
"""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

from model.activation_memory import FLOAT32, evaluation_bytes, model_bytes
from model.config import TokenformerConfig, TransformerConfig, parameter_shapes
from model.parameter_names import GROUP_KINDS, OptimizerName, generation_of, group_kind
from model.precision import BYTES, DeviceType, Precision
from stages.engine.muon_memory import Difference, muon_difference
from stages.spec import Offload, ZeroStage, evaluation_batch

REDUCE_BUCKET = 500_000_000
"""DeepSpeed's default size of the reduction buffer, in elements."""

LIVE_PARAMETERS = 1_000_000_000
"""DeepSpeed's default for how many elements ZeRO-3 keeps gathered, besides those that autograd holds."""

FETCHED_AHEAD = 50_000_000
"""DeepSpeed's default for how many elements ZeRO-3 prefetches at most, in a buffer that it then splits."""

PERSISTENT_PARAMETER = 100_000
"""DeepSpeed's default for the largest parameter, in elements, that ZeRO-3 never partitions."""


@dataclass(frozen=True)
class Memory:
    """Bytes of one device at the peak of a stage, by part."""

    parameters: int
    """In the precision that the model computes in; under ZeRO-3, with the gathered ones."""

    gradients: int
    """Between the micro-batches of a step, with the buffers that live as long."""

    optimizer: int
    """Float32 master weights and the optimizer's moments: Adam's two, or Muon's momentum."""

    activations: int
    """What autograd keeps for the backward pass."""

    temporary: int
    """What the peak needs in addition. The peak is in the loss or in a layer's backward pass. If more is needed
    later, without the activations, it is in the gradients' reduction, the update, or the stage's final evaluation."""

    host: int
    """Bytes of host memory per device (offloading)."""

    total: int
    """The device's bytes: all parts but the host's."""


def engine_checkpoint_bytes(
    num_parameters: int, zero_stage: ZeroStage, precision: Precision, muon_elements: int = 0
) -> int:
    """Size of a checkpoint within a stage, all ranks' files: masters, moments, and except under ZeRO-3 the weights.

    `muon_elements` have one moment instead of two. Below ZeRO-3 in float32, a matrix that several ranks share has its
    momentum in the files of each; that is not counted.
    """
    weights = 0 if zero_stage == 3 else num_parameters * BYTES[precision]
    return parameters_checkpoint_bytes(num_parameters, muon_elements) + weights


def parameters_checkpoint_bytes(num_parameters: int, muon_elements: int = 0) -> int:
    """Size of a checkpoint at the end of a stage: value and moments of every parameter in float32."""
    return FLOAT32 * (3 * num_parameters - muon_elements)


def reduce_bucket(num_parameters: int) -> int:
    """Elements of the reduction buffer. DeepSpeed allocates all of it, however small the model is."""
    return min(num_parameters, REDUCE_BUCKET)


class TrainingMemory:
    """The memory that training a model needs on each device, prepared once for micro-batches of any size."""

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
        recompute_every: int | None = None,
        optimizer: OptimizerName = "adamw",
        evaluation_length: int | None = None,
    ) -> None:
        """`evaluation_length`: the context of evaluations, if that is not `sequence_length`."""
        self._sequence_length, self._evaluation_length = sequence_length, evaluation_length or sequence_length
        self._sizes = _Sizes.of(config, world_size, optimizer)
        self._engine = _engine(self._sizes, zero_stage, precision, offload, device)
        if optimizer == "muon":
            changes = muon_difference(
                config,
                zero_stage=zero_stage,
                world_size=world_size,
                parameter_bytes=BYTES[precision],
                bucket=self._sizes.bucket,
                device=device,
            )
            self._engine = self._engine.plus(changes)
        self._model = model_bytes(config, precision, device, recompute_every)
        self._config, self._device = config, device

    def of(self, micro_batch_size: int) -> Memory:
        """Bytes with micro-batches of `micro_batch_size` sequences."""
        sizes, engine = self._sizes, self._engine
        training = self._model.of(micro_batch_size, self._sequence_length)
        # The first reduction runs when the bucket is full; the layers not yet reached still hold their activations.
        waiting = round(training.activations * (1 - sizes.bucket / sizes.total))
        # At the end of the stage a plain float32 model is evaluated, while the idle engine keeps its memory.
        per_pass = evaluation_batch(micro_batch_size, self._sequence_length, self._evaluation_length)
        passes = {(micro_batch_size, self._sequence_length), (per_pass, self._evaluation_length)}
        evaluation = FLOAT32 * sizes.total + max(
            evaluation_bytes(self._config, number, length, self._device) for number, length in passes
        )
        moments = (
            engine.forward,
            training.at_loss,
            training.in_blocks + engine.backward,
            engine.backward + engine.reducing + waiting - training.activations,
            engine.updating - training.activations,
            evaluation + engine.resting - engine.gradients - training.activations,
        )
        parts = {
            "parameters": engine.parameters,
            "gradients": engine.gradients,
            "optimizer": engine.optimizer,
            "activations": training.activations,
            "temporary": max(moments),
        }
        return Memory(**parts, host=engine.host, total=sum(parts.values()))


class _Sizes(NamedTuple):
    """Numbers of elements."""

    total: int
    """Parameters, P."""

    shard: int
    """One rank's share of the parameters."""

    largest: int
    """The largest parameter."""

    groups: tuple[int, ...]
    """The parameter groups that stages/engine/engine.py makes."""

    bucket: int
    persistent: int
    """Parameters that are small enough for ZeRO-3 to keep them gathered."""

    @classmethod
    def of(cls, config: TokenformerConfig | TransformerConfig, world_size: int, optimizer: OptimizerName) -> "_Sizes":
        """The sizes for `config`."""
        shapes = parameter_shapes(config)
        counts = {name: math.prod(shape) for name, shape in shapes.items()}
        groups: dict[tuple[int, int], int] = {}
        for name, shape in shapes.items():
            key = generation_of(name), GROUP_KINDS.index(group_kind(name, len(shape), optimizer))
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
        """The most that ZeRO-3 gathers and keeps for the backward pass; 0 on one rank, which holds all parameters."""
        return min(self.total, LIVE_PARAMETERS) if self.shard < self.total else 0

    @property
    def released(self) -> int:
        """Gathered elements that ZeRO-3 has released when the bucket is full: the same share as the bucket has."""
        return max(0, self.gathered - self.persistent) * self.bucket // self.total

    @property
    def reduced_at_once(self) -> tuple[int, bool]:
        """The most that BF16_Optimizer reduces at once, and whether it joins groups for that.

        It joins groups until they exceed the bucket.
        """
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
    """What DeepSpeed keeps between passes, in bytes. Temporary memory was measured, operation by operation
    (tests/stages/engine/test_device_memory.py)."""

    parameters: int
    optimizer: int
    gradients: int
    """Between the micro-batches of a step."""

    resting: int
    """The same between steps; under ZeRO-3 less the gathered parameters."""

    forward: int = 0
    """In addition, in the forward pass."""

    backward: int = 0
    """In addition, in the backward pass of the blocks."""

    reducing: int = 0
    """In addition to `backward`, while gradients are reduced."""

    updating: int = 0
    """In addition to `gradients`, in the update; negative if the gradients are freed before it."""

    host: int = 0

    def plus(self, changes: Difference) -> "_Engine":
        """The engine with these differences."""
        return replace(self, **{name: getattr(self, name) + change for name, change in changes._asdict().items()})


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
    """BF16_Optimizer: each rank sums gradients in float32 as they arrive, and reduces copies of them in bf16."""
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
    """Gradients are summed in place; at the last micro-batch they pass through the bucket."""
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
    # In float32 they are copied once more, into one buffer; in bf16 they are cast one by one.
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
    """As ZeRO-2, but the bucket is permanent, and parameters are gathered for each pass."""
    bucket, share, gathered = b * sizes.bucket, FLOAT32 * sizes.shard, b * sizes.gathered
    reduced = FLOAT32 * sizes.bucket * sizes.shard // sizes.total
    fetched = b * min(sizes.gathered, FETCHED_AHEAD)
    held, overlapping = 0, max(bucket, reduced)
    if device == "cpu":
        # gloo's thread may hold a collective's buffers while the rank continues: prefetched parameters, and the copy
        # of the bucket that gloo reduces, while the rank casts the result.
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
    """Masters, moments and their gradients on the host, with a buffer of the largest parameter's size on both sides."""
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
