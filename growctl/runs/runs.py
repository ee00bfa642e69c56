"""The cost and quality of every stage of a run, as its ledger records them.

FLOPs count the work that was kept. Work that was repeated after an interruption is reported separately, for ladders and
controls alike: a machine failure has nothing to do with the training method.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from growctl.ledger.entries import AnomalyEntry, BaseEntry, Cost, ScoreEntry
from stages.generate.text_samples import TextSample
from stages.metrics_lines import SourceEvaluation


@dataclass(frozen=True)
class StageReport:
    """The size, cost and quality of one stage, or of its release."""

    name: str
    num_parameters: int
    num_steps: int
    """Optimizer steps trained in the stage, without replayed ones."""
    train_tokens: int
    """Data tokens trained in the stage, without replayed ones."""
    flops: float
    """Training FLOPs of this stage alone, whichever run paid for them: with `rolled_back_flops`, not with
    `replayed_flops`."""
    cumulative_flops: float
    """Training FLOPs of the start checkpoint, all stages before and this one, without replays and other releases."""
    replayed_flops: float
    """Training FLOPs that a later attempt had to spend again after an interruption from outside."""
    wall_seconds: float
    """Includes replayed steps, but not reused ones."""
    device_seconds: float
    """Includes replayed steps, but not reused ones."""
    replayed_device_seconds: float
    """The part of `device_seconds` spent on replayed steps and on attempts that completed no step."""
    validation_loss: float | None
    """Nats per token at the stage's end, in fp32 from the master weights; None while unfinished. Of a mixture, the mean
    of its sources' by base weights. Measured at the context of the ladder's last stage, in every stage."""
    perplexity: float | None
    bits_per_byte: float | None
    loss_before_growth: float | None
    """The previous stage's `validation_loss`, or the start checkpoint's if measured alike; None if there is none, and
    for a stage that does not grow."""
    loss_after_growth: float | None
    """Nats per token at step 0 of this stage; None for one that does not grow."""
    finished: bool
    rolled_back_flops: float = 0.0
    """The part of `flops` that rollbacks after anomalies of its own training gave up."""
    evaluation_flops: float = 0.0
    """FLOPs of evaluations, which no other figure contains. Includes replayed ones."""
    evaluated_tokens: int | None = None
    """Validation tokens that `validation_loss` was measured on; None while unfinished."""
    evaluation_precision: str | None = None
    """The precision that it was measured in; None while unfinished."""
    cost_is_whole: bool = True
    """Whether the ledger's rows sum up to the FLOPs in the manifest of the final checkpoint, if that is here."""
    reused_flops: float = 0.0
    """The part of `flops` that this run took over from other runs and did not spend."""
    reused_from: tuple[str, ...] = ()
    """The runs that paid for `reused_flops`."""
    recomputed_flops: float = 0.0
    """FLOPs that activation checkpointing added, which no other figure contains. Includes replayed steps, but not
    reused ones."""
    branch_of: str | None = None
    """The stage that a release branches from; None for a stage of the ladder."""
    decayed: bool = False
    """Whether the learning rate decays by its end, so that it ends in a finished model."""
    samples: tuple[TextSample, ...] = ()
    """The texts that its model wrote once it was finished, if the schedule has prompts."""
    scores: tuple[ScoreEntry, ...] = ()
    """The scores of its final checkpoint, the newest of each kind."""
    step_seconds: float | None = None
    """The part of `wall_seconds` spent in optimizer steps. None, here and below, if it is not known of all the work."""
    mfu: float | None = None
    """Share of the devices' peak speed that those steps reached; None without a known peak."""
    peak_gpu_bytes: int | None = None
    """Bytes that torch had allocated, on the GPU where they were most; None on CPUs."""
    peak_resident_bytes: int | None = None
    """Resident memory (RSS) of the rank where it was largest."""
    gpu_joules: float | None = None
    """Energy of the GPUs. This and what follows includes replayed steps, but not reused ones."""
    cpu_joules: float | None = None
    """Energy of the machines' processors and memory, whichever process used it."""
    money: float | None = None
    """Device-hours x `launch.hardware.price_per_device_hour`, in its currency."""
    replayed_gpu_joules: float | None = None
    """The part of `gpu_joules` that belongs to `replayed_device_seconds`; so of the next two."""
    replayed_cpu_joules: float | None = None
    replayed_money: float | None = None
    by_source: dict[str, SourceEvaluation] = field(default_factory=dict)
    """The sources of a mixture at the stage's end, or at its last evaluation while it is unfinished, by name. Empty for
    a dataset that is not a mixture."""
    num_embedding_parameters: int | None = None
    """The part of `num_parameters` in the embedding and the output layer."""
    model_cost: Cost | None = None
    """What the model has cost in this stage, by the rule of `flops`: without replayed work, with reused work."""
    planned_steps: int | None = None
    """Optimizer steps of its budget, also while it is unfinished."""
    tokens_per_step: int = 0
    """Data tokens of an optimizer step."""
    step_flops: float = 0.0
    """Training FLOPs of an optimizer step."""
    sequence_length: int | None = None
    """Its own context, in data tokens; None if not recorded."""
    num_layers: int | None = None
    """Layers of its model; None if not recorded."""
    own_context_loss: float | None = None
    """Like `validation_loss`, at its own context; None if `validation_loss` is measured at that one."""

    @property
    def batch_size(self) -> int | None:
        """Sequences of an optimizer step; None if its context is not recorded."""
        return self.tokens_per_step // self.sequence_length if self.sequence_length else None

    @property
    def jump(self) -> float | None:
        """The change in loss that the growth itself causes: after minus before, in nats per token."""
        if self.loss_before_growth is None or self.loss_after_growth is None:
            return None
        return self.loss_after_growth - self.loss_before_growth


@dataclass(frozen=True)
class EvaluationPoint:
    """One evaluation, with the run's cost up to it."""

    stage: str
    point: str
    """`interval` (before the decay), `after_growth`, `start` (of a stage that does not grow) or `final`."""
    cumulative_flops: float
    """Training FLOPs of all steps before it, without replayed ones."""
    loss: float
    perplexity: float
    bits_per_byte: float | None = None
    step: int = 0
    """Steps of its stage before it."""


@dataclass(frozen=True)
class ControlToCome:
    """A control that a ladder's schedule asks for and that is not finished."""

    name: str
    kind: str
    num_parameters: int | None
    """None if not known."""
    state: str
    """As `growctl status` calls it: `not started`, `running`, `stopped`, `failed`, ..."""


@dataclass(frozen=True)
class RunReport:
    """One run, as recorded in its ledger."""

    name: str
    """The name of its directory."""
    recorded_name: str
    """The name that it was started with. A copied or renamed run has another directory."""
    run_id: str
    """The unique id of the run; its copies have the same id."""
    schedule: str
    control: str | None
    """Kind of control; None for a ladder."""
    control_of: str | None
    """The ladder that a control belongs to."""
    ladder_id: str | None
    """The `run_id` of that ladder when the control was started."""
    stages: tuple[StageReport, ...]
    points: tuple[EvaluationPoint, ...]
    dataset_fingerprint: str
    directory: Path
    dataset: str = ""
    """The path of its dataset, on the machine that trained it."""
    conditions: dict[str, Any] = field(default_factory=dict)
    """Settings that two runs must share for a fair comparison, by dotted path."""
    relaunched: tuple[str, ...] = ()
    """The conditions of its launch that changed when it resumed."""
    decays: bool = True
    """Whether the learning rate decays at the end."""
    caveats: tuple[str, ...] = ()
    """Caveats for comparisons with this control. Each continues a sentence that starts with the control's name."""
    precisions: frozenset[str] = frozenset()
    """The precisions that it was trained in: `bf16`, `fp32`."""
    anomalies: tuple[tuple[str, AnomalyEntry], ...] = ()
    """Training anomalies, each with the name of its stage."""
    base: BaseEntry | None = None
    """The checkpoint that it started from; None for a new model."""
    group: str | None = None
    """The name of the set of runs that it belongs to; None for a run of its own."""
    overrides: dict[str, Any] = field(default_factory=dict)
    """What sets it apart in that set: the swept keys of the schedule, dotted, with its values."""
    validation_documents: int | None = None
    """Documents in the validation split of its dataset; None if not recorded."""
    validation_tokens: int | None = None
    """Tokens in that split."""
    training_tokens: int | None = None
    """Tokens in the training split; None if not recorded. What is trained divided by it is epochs."""
    notes: tuple[str, ...] = ()
    """Notes for the reader, one sentence each."""
    seed: int = 0
    """The seed of the weights and of the order of the data."""
    controls_to_come: tuple[ControlToCome, ...] = ()
    """The controls of a ladder that are not finished. Empty unless with_controls_to_come looked."""
    machines: tuple[tuple[str, int, str], ...] = ()
    """The device, the number of devices and the precision of its training, reused work included, in its order."""
    releases: tuple[StageReport, ...] = ()
    """Branches from the stages that end in finished models, in the order of their stages."""

    @property
    def parts(self) -> tuple[StageReport, ...]:
        """All stages, each followed by its release if it has one."""
        released = {release.branch_of: release for release in self.releases}
        pairs = ((stage, released.get(stage.name)) for stage in self.stages)
        return tuple(part for pair in pairs for part in pair if part)

    def path(self, part: StageReport) -> tuple[StageReport, ...]:
        """The stages that the model of a stage or a release has gone through, `part` last."""
        names = [stage.name for stage in self.stages]
        before = self.stages[: names.index(part.branch_of or part.name) + 1]
        return (*before, part) if part.branch_of else before

    @property
    def finished(self) -> bool:
        """Whether every stage of the schedule is finished."""
        return bool(self.stages) and all(stage.finished for stage in self.stages)

    @property
    def final_loss(self) -> float | None:
        """Nats per token at the end of the last stage; None if the run is unfinished or diverged."""
        if not self.finished or not math.isfinite(self.stages[-1].perplexity or math.inf):
            return None
        return self.stages[-1].validation_loss

    @property
    def cumulative_flops(self) -> float:
        """Training FLOPs of the start checkpoint and of all stages so far, without replays and releases."""
        return self.stages[-1].cumulative_flops if self.stages else 0.0

    @property
    def total_flops(self) -> float:
        """Training FLOPs of all stages and releases so far, without replayed ones."""
        return self.cumulative_flops + sum(release.flops for release in self.releases)

    @property
    def recomputed_flops(self) -> float:
        """FLOPs that activation checkpointing added in all stages and releases."""
        return sum(part.recomputed_flops for part in self.parts)

    @property
    def reused_flops(self) -> float:
        """Training FLOPs that other runs paid for."""
        return sum(part.reused_flops for part in self.parts)

    @property
    def reused_from(self) -> tuple[str, ...]:
        """The runs that paid for them, in the order of the stages."""
        return tuple(dict.fromkeys(name for part in self.parts for name in part.reused_from))

    @property
    def replayed_flops(self) -> float:
        """Training FLOPs that the stages had to repeat; those of releases are not included."""
        return sum(stage.replayed_flops for stage in self.stages)

    @property
    def description(self) -> str:
        """What kind of run it is, to print beside its name."""
        return f"{self.control}, control of {self.control_of}" if self.control else f"ladder, {self.schedule}"
