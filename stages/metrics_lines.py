"""The kinds of lines in metrics.jsonl: their keys, and the values that readers can rely on. Imports no torch."""

from functools import cache
from typing import Annotated, Any, Literal, NotRequired

from pydantic import ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveInt, TypeAdapter
from typing_extensions import TypedDict

from stages.spec import Action


class _Line(TypedDict):
    attempt: PositiveInt
    """Which start of the stage wrote the line: 1 for the first. Resuming starts the next attempt."""

    step: NonNegativeInt
    """Optimizer steps done in the stage."""

    seconds: NonNegativeFloat
    """Wall seconds since this attempt was launched, start-up included."""

    crc32: str
    """CRC-32 of the line before this key, with a closing brace, as eight hexadecimal digits."""


class StartLine(_Line):
    """The workers of an attempt are ready to train."""

    event: Literal["start"]
    device: str
    """The device's name, such as `NVIDIA H100 80GB HBM3` or `cpu`."""

    num_devices: PositiveInt
    """Devices of the stage, over all machines; one rank trains on each."""

    precision: str
    """`bf16` or `fp32`."""

    zero_stage: NonNegativeInt
    """DeepSpeed's ZeRO stage."""

    resumed_from: NonNegativeInt | None
    """The step of the checkpoint that the attempt resumed from; null if it started the stage."""

    converted: bool
    """Whether that checkpoint was first converted, for other ranks or another ZeRO stage."""

    recomputed_step_flops: NonNegativeFloat
    """FLOPs of an optimizer step that activation checkpointing adds to its training FLOPs; 0 without it."""

    peak_flops: NonNegativeFloat | None
    """Peak FLOPs per second of one device, as `launch.hardware.flops` says; null if it says nothing."""

    price_per_device_hour: NonNegativeFloat | None
    """`launch.hardware.price_per_device_hour`; null if there is none."""


class Usage(TypedDict):
    """What the ranks of an attempt have used."""

    gpu_joules: NonNegativeFloat | None
    """Joules of all GPUs together, from NVML's counters; null if unknown."""

    peak_gpu_bytes: NonNegativeInt | None
    """Bytes that torch had allocated on a GPU at the peak, on the GPU where they were most; null on CPUs."""

    peak_resident_bytes: NonNegativeInt | None
    """Resident memory (RSS) of a rank's process at its peak, of the rank where it was largest; null if unknown."""


class UsageLine(_Line, Usage):
    """What the attempt has used since its `start` line. Written after that line, before each line of `train`,
    `checkpoint` and `end`, and at the moment when the first and the last evaluation of the stage begin."""

    event: Literal["usage"]


class TrainLine(_Line):
    """Progress since the last such line, every `training.log_every` steps."""

    event: Literal["train"]
    loss: float | None
    """Training loss, nats per token: the mean over the updates since the last such line and over all ranks. null if
    there were no updates, or if it is not finite."""

    learning_rate: float
    """The learning rate of the last update."""

    gradient_norm: float | None
    """L2 norm of the last update's gradient, before clipping; null if that update was rejected."""

    tokens_seen: NonNegativeInt
    """Data tokens trained in the stage so far."""

    tokens_per_second: NonNegativeFloat
    """Data tokens per wall second since the last such line, over all devices."""

    data_wait_seconds: NonNegativeFloat
    """Wall seconds since the last such line in which a rank waited for its next micro-batch, as for remote tokens: the
    mean over all ranks."""


class SourceEvaluation(TypedDict):
    """One source of a mixture at an evaluation."""

    loss: float | None
    """Nats per token; null if it is not finite."""

    bits_per_byte: float | None
    """Bits per UTF-8 byte of the source's text; null if that is not finite."""

    num_tokens: NonNegativeInt
    """Validation tokens predicted."""

    trained_tokens: NonNegativeInt
    """Data tokens of the source that the stage has trained on so far. Data that a rollback skipped does not count."""

    epochs: NonNegativeFloat
    """How often training has read the source so far, from the ladder's first sample on."""


class EvaluationLine(_Line):
    """A loss on the validation split, in nats per token or, of images, per image."""

    event: Literal["evaluation"]
    point: str
    """`after_growth` at step 0 of a grown model, `start` at step 0 of another; later `interval` and `final`."""

    precision: str
    """Precision of the evaluation: that of training, or `fp32` for `final`."""

    loss: float | None
    """Validation loss, nats; null if it is not finite. Of a mixture, the mean of the sources' losses,
    weighted by the base weights of `data.mixture` at every stage. Measured at the context of the ladder's last stage,
    in every stage."""

    perplexity: float | None
    """exp(loss); null if that is not finite."""

    bits_per_byte: float | None
    """Bits per UTF-8 byte of the text; null if that is not finite, and for images. Of a mixture, the same mean of the
    sources'."""

    num_tokens: NonNegativeInt
    """Validation tokens predicted; of images, read."""

    top1: NotRequired[NonNegativeFloat]
    """Share of the validation images whose likeliest class is the right one; missing for text."""

    top5: NotRequired[NonNegativeFloat]
    """The same for one of the five likeliest classes."""

    by_source: dict[str, SourceEvaluation] | None
    """The results by the name of the source; null for a dataset that is not a mixture."""

    own_context_loss: NotRequired[float | None]
    """The same loss at the stage's own context; null if it is not finite, missing if that is the context of `loss`."""

    own_context_tokens: NotRequired[NonNegativeInt]
    """Validation tokens predicted for it; missing where it is."""


class Anomaly(TypedDict):
    """A rejected update."""

    kind: Literal["non_finite", "spike"]
    """Why it was rejected: its loss or gradient is not finite, or its loss jumped."""

    value: float | None
    """The update's training loss, nats per token; null if it is not finite."""

    threshold: float | None
    """The loss that a spike exceeded, nats per token; null for `non_finite`."""

    action: Action
    """What follows: the update is skipped, training goes back to a checkpoint, or the stage stops."""

    first_step: NonNegativeInt
    """The first update, counted from 0, whose data is skipped."""

    num_steps: NonNegativeInt
    """The number of updates whose data is skipped."""


class AnomalyLine(_Line, Anomaly):
    """A rejected update. With `rollback` or `stop` it is the last line of its attempt."""

    event: Literal["anomaly"]


class TriggerLine(_Line):
    """A check, after an evaluation, of whether the loss still falls fast enough (`until`)."""

    event: Literal["trigger"]
    slope: float | None
    """Nats per token that the loss falls by per training FLOP; null until there are enough evaluations."""

    threshold: float
    """The slope below which the stage ends, nats per token per FLOP."""

    fired: bool
    """Whether the stage ends now."""


class CheckpointLine(_Line):
    """A checkpoint is complete."""

    event: Literal["checkpoint"]
    path: str
    """Its name in the stage's directory."""


class SavedLine(_Line):
    """The workers were asked to save and exit, and have saved. The last line of its attempt."""

    event: Literal["saved"]
    path: str
    """The checkpoint's name in the stage's directory."""


class ReusedLine(_Line):
    """Steps taken over from another run, in an attempt of their own; the evaluations of those steps follow."""

    event: Literal["reused"]
    run: str
    """The run that paid for the steps: its name, or its path if it is in another runs directory."""

    checkpoint: str
    """The path of the checkpoint that was taken over."""

    device: str
    """The device that the other run trained on."""

    num_devices: PositiveInt
    """Devices of the other run."""

    precision: str
    """Precision of the other run's training."""

    resumed_from: NonNegativeInt
    """The step up to which this run had trained itself."""

    device_seconds: NonNegativeFloat
    """Wall seconds x devices that the steps cost the other run: those since `resumed_from`, or since the line before
    if that is a `reused` line of the same attempt."""


class EndLine(_Line):
    """The stage is done; only the checkpoint `final` has yet to be renamed into place."""

    event: Literal["end"]


Line = Annotated[
    StartLine
    | UsageLine
    | TrainLine
    | EvaluationLine
    | AnomalyLine
    | TriggerLine
    | CheckpointLine
    | SavedLine
    | ReusedLine
    | EndLine,
    Field(discriminator="event"),
]
"""Any line of metrics.jsonl."""


@cache
def _checker() -> TypeAdapter[Any]:
    return TypeAdapter(Line, config=ConfigDict(strict=True, extra="forbid", allow_inf_nan=False))


def checked_line(text: bytes) -> dict[str, Any]:
    """The keys and values of a line. Raises ValueError if it is not one of the kinds above."""
    record: dict[str, Any] = _checker().validate_json(text)
    return record
