"""Device memory of a stage in training, by part, and the size of its checkpoints: a formula that is right to 15 %.

Imports no torch.

What DeepSpeed 0.19.8 allocates, configured as in stages/engine/engine.py, for P parameters of b bytes (2 in bf16, 4 in
float32) on w ranks and R elements in the reduction buffer:

| engine | parameters | gradients between micro-batches | in addition, in the backward pass |
|---|---|---|---|
| ZeRO-1 in bf16 | b P | 4 P accumulated | one parameter's gradient, b + 4 bytes per element |
| ZeRO-1 in fp32, or offloaded | b P | 4 P accumulated, 4 R | |
| ZeRO-2 | b P | 4 P/w accumulated | b R |
| ZeRO-3 | b P/w and the gathered parameters | 4 P/w accumulated, b R | |

Master weights and moments add 12 P/w. Offloading moves them to the host, with ZeRO-3's accumulated gradients. Muon
keeps one moment of its matrices, except below ZeRO-3 in float32, and takes a few float32 copies of a matrix in the
update.
"""

import math
from collections import Counter
from dataclasses import dataclass

from model.memory import FLOAT32, ActivationMemory
from model.parameter_names import GROUP_KINDS, OptimizerName, generation_of, group_kind
from model.precision import BYTES, DeviceType, Precision
from model.shapes import ModelConfig, num_parameters, parameter_shapes
from stages.spec import Offload, ZeroStage, evaluation_batch

REDUCE_BUCKET = 500_000_000
"""DeepSpeed's default size of the reduction buffer, in elements."""

LIVE_PARAMETERS = 1_000_000_000
"""DeepSpeed's default for how many elements ZeRO-3 keeps gathered, besides those that autograd holds."""

PERSISTENT_PARAMETER = 100_000
"""DeepSpeed's default for the largest parameter, in elements, that ZeRO-3 never partitions."""

GATHERED_BYTES = 256 * 2**20
"""DeepSpeed's limit for the buffers that ZeRO-3 keeps to gather Muon's gradients and momentum."""


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
    config: ModelConfig, optimizer: OptimizerName, zero_stage: ZeroStage, precision: Precision
) -> int:
    """Size of a checkpoint within a stage, all ranks' files: masters, moments, and except under ZeRO-3 the weights.

    Below ZeRO-3 in float32, a matrix that several ranks share has Muon's momentum in the files of each; that is not
    counted.
    """
    weights = 0 if zero_stage == 3 else num_parameters(config) * BYTES[precision]
    return parameters_checkpoint_bytes(config, optimizer) + weights


def parameters_checkpoint_bytes(config: ModelConfig, optimizer: OptimizerName) -> int:
    """Size of a checkpoint at the end of a stage: value and moments of every parameter in float32.

    What Muon updates has one moment instead of two.
    """
    muon_elements = sum(_muon_matrices(config)[0]) if optimizer == "muon" else 0
    return FLOAT32 * (3 * num_parameters(config) - muon_elements)


def reduce_bucket(elements: int) -> int:
    """Elements of the reduction buffer. DeepSpeed allocates all of it, however small the model is."""
    return min(elements, REDUCE_BUCKET)


class TrainingMemory:
    """The memory that training a model needs on each device, prepared once for micro-batches of any size."""

    def __init__(
        self,
        config: ModelConfig,
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
        self._activations = ActivationMemory(config, precision, device, recompute_every)
        self._engine = _Engine(config, zero_stage, world_size, BYTES[precision], offload == "optimizer", optimizer)

    def of(self, micro_batch_size: int) -> Memory:
        """Bytes with micro-batches of `micro_batch_size` sequences."""
        engine = self._engine
        training = self._activations.of(micro_batch_size, self._sequence_length)
        # The first reduction runs when the bucket is full; the layers not yet reached still hold their activations.
        waiting = round(training.activations * (1 - engine.bucket / engine.total))
        # At the end of the stage a plain float32 model is evaluated, while the idle engine keeps its memory.
        per_pass = evaluation_batch(micro_batch_size, self._sequence_length, self._evaluation_length)
        passes = {(micro_batch_size, self._sequence_length), (per_pass, self._evaluation_length)}
        evaluating = FLOAT32 * engine.total + max(self._activations.evaluation(*sizes) for sizes in passes)
        moments = (
            training.at_loss,
            training.in_blocks + engine.backward,
            engine.reducing + waiting - training.activations,
            engine.updating - training.activations,
            evaluating + engine.resting - engine.gradients - training.activations,
        )
        parts = {
            "parameters": engine.parameters,
            "gradients": engine.gradients,
            "optimizer": engine.optimizer,
            "activations": training.activations,
            "temporary": max(moments),
        }
        return Memory(**parts, host=engine.host, total=sum(parts.values()))


class _Engine:
    """What DeepSpeed keeps between passes, in bytes. Temporary memory was measured, operation by operation
    (tests/stages/engine/test_memory.py)."""

    backward = 0
    """In addition to `gradients`, in the backward pass of the blocks."""

    reducing = 0
    """The same while gradients are reduced."""

    updating = 0
    """The same in the update; negative if the gradients are freed before it."""

    resting = 0
    """Gradients and their buffers between steps; under ZeRO-3 less the gathered parameters."""

    host = 0

    def __init__(
        self,
        config: ModelConfig,
        zero_stage: ZeroStage,
        world_size: int,
        b: int,
        offload: bool,
        optimizer: OptimizerName,
    ) -> None:
        counts = {name: math.prod(shape) for name, shape in parameter_shapes(config).items()}
        self.total, largest = sum(counts.values()), max(counts.values())
        self.bucket = reduce_bucket(self.total)
        shard = math.ceil(self.total / world_size)
        share, bucket = FLOAT32 * shard, b * self.bucket
        self.parameters, self.optimizer = b * self.total, 3 * share
        if zero_stage == 3:
            # The bucket is permanent, and parameters are gathered for each pass, but not on one rank, which has all.
            gathered = b * min(self.total, LIVE_PARAMETERS) if world_size > 1 else 0
            small = sum(count for count in counts.values() if count <= PERSISTENT_PARAMETER)
            released = max(0, gathered - b * small) * self.bucket // self.total  # when the bucket is full
            self.parameters = b * shard + gathered
            self.gradients, self.resting = share + bucket, share + bucket - gathered
            self.reducing = bucket + max(bucket, FLOAT32 * self.bucket * shard // self.total) - released
            self.updating = share - gathered
        elif zero_stage == 2:
            self.gradients, self.backward = share, bucket
            # In float32 gradients are copied once more, into one buffer; in bf16 they are cast one by one.
            self.reducing = 2 * bucket + (FLOAT32 * largest if b < FLOAT32 else share)
            self.updating = 0 if b < FLOAT32 else share
        elif b < FLOAT32 and not offload:
            self.gradients = self.resting = FLOAT32 * self.total
            self.backward, self.reducing = (b + FLOAT32) * largest, _reduced_at_once(config, optimizer, b)
        else:  # gradients are summed in place; at the last micro-batch they pass through the bucket
            self.gradients, self.reducing = FLOAT32 * (self.total + self.bucket), share
            self.updating = 2 * share - self.gradients
        if optimizer == "muon":
            self._add_muon(config, zero_stage, b, world_size)
        if offload:
            self._move_to_host(zero_stage, b, share, largest)

    def _add_muon(self, config: ModelConfig, zero_stage: ZeroStage, b: int, world_size: int) -> None:
        groups, largest = _muon_matrices(config)
        share, copy = FLOAT32 * math.ceil(sum(groups) / world_size), FLOAT32 * largest
        if zero_stage == 2 or (zero_stage == 1 and b == FLOAT32):  # the momentum is kept twice, and the updates
            self.reducing += share + 3 * copy
            self.updating += share
            return
        self.optimizer -= share
        self.updating += 5 * copy if zero_stage == 1 else 3 * copy
        if zero_stage == 3:  # the bucket is in float32, and gradients and momentum are gathered, a bucketful at a time
            chunks = {min(self.bucket, size) for size in groups}
            buffers = [FLOAT32 * (chunk + math.ceil(chunk / world_size)) for chunk in chunks if world_size > 1]
            kept = min(GATHERED_BYTES, sum(size for size in buffers if size <= GATHERED_BYTES))
            wider = (FLOAT32 - b) * self.bucket
            self.gradients, self.resting = self.gradients + kept + wider, self.resting + kept + wider
            self.reducing += 2 * wider
            self.updating += 2 * FLOAT32 * max(chunks, default=0) + max(
                (size for size in buffers if size > GATHERED_BYTES), default=0
            )

    def _move_to_host(self, zero_stage: ZeroStage, b: int, share: int, largest: int) -> None:
        """Masters, moments and their gradients, with a buffer of the largest parameter's size on both sides."""
        buffer, before = b * largest, self.gradients
        self.host = self.optimizer + 2 * share
        if zero_stage == 3:
            self.gradients = b * self.bucket
            self.resting += self.gradients - before
        elif zero_stage == 2 and b == FLOAT32:
            self.gradients, self.host = buffer, self.host + share + buffer
        else:
            self.gradients, self.host = before + buffer, self.host + b * share // FLOAT32 - share + buffer
        self.optimizer = self.updating = 0


def _groups(config: ModelConfig, optimizer: OptimizerName) -> dict[tuple[int, str], int]:
    """The elements of each parameter group that stages/engine/engine.py makes, in its order."""
    groups: Counter[tuple[int, int]] = Counter()
    for name, shape in parameter_shapes(config).items():
        groups[generation_of(name), GROUP_KINDS.index(group_kind(name, len(shape), optimizer))] += math.prod(shape)
    return {(generation, GROUP_KINDS[kind]): size for (generation, kind), size in sorted(groups.items())}


def _muon_matrices(config: ModelConfig) -> tuple[list[int], int]:
    """The elements of Muon's parameter groups, and of its largest matrix."""
    shapes = parameter_shapes(config).items()
    sizes = [math.prod(shape) for name, shape in shapes if group_kind(name, len(shape), "muon") == "muon"]
    return [size for (_, kind), size in _groups(config, "muon").items() if kind == "muon"], max(sizes, default=0)


def _reduced_at_once(config: ModelConfig, optimizer: OptimizerName, b: int) -> int:
    """Bytes of the most that BF16_Optimizer reduces at once. It joins parameter groups until they exceed the bucket."""
    most = elements = members = 0
    for size in _groups(config, optimizer).values():
        elements, members = elements + size, members + 1
        most = max(most, (b + (FLOAT32 if members > 1 else 0)) * elements)
        if elements > REDUCE_BUCKET:
            elements = members = 0
    return most
