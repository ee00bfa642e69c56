"""The cost and quality of every stage of a run, as its ledger records them.

FLOPs count the work that was kept. Work that was repeated after an interruption is reported separately, for ladders and
controls alike: a machine failure has nothing to do with the training method.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from growctl.ledger.entries import AnomalyEntry, Cost, RunEntry, ScoreEntry
from stages.generate.text_samples import TextSample
from stages.metrics_lines import SourceEvaluation


@dataclass(frozen=True, kw_only=True)
class StageReport:
    """The size, cost and quality of one stage, or of its release."""

    name: str
    num_parameters: int
    num_read_parameters: int | None = None
    """Parameters that a data token reads; None: all."""
    num_layers: int | None = None
    """Layers of its model; None if not recorded."""
    sequence_length: int | None = None
    """Its own context, in data tokens; None if not recorded."""
    tokens_per_step: int = 0
    """Data tokens of an optimizer step."""
    step_flops: float = 0.0
    """Training FLOPs of an optimizer step."""
    planned_steps: int | None = None
    """Optimizer steps of its budget, also while it is unfinished."""
    branch_of: str | None = None
    """The stage that a release branches from; None for a stage of the ladder."""
    decayed: bool = False
    """Whether the learning rate decays by its end, so that it ends in a finished model."""
    finished: bool
    num_steps: int
    """Optimizer steps trained in the stage, without replayed ones."""
    train_tokens: int
    """Data tokens trained in the stage, without replayed ones."""
    flops: float
    """Training FLOPs of this stage alone, whichever run paid for them: with `rolled_back_flops`, not with
    `replayed_flops`."""
    cumulative_flops: float
    """Training FLOPs of all stages before and this one, without replays, other releases and the start checkpoint."""
    replayed_flops: float = 0.0
    """Training FLOPs that a later attempt had to spend again after an interruption from outside."""
    rolled_back_flops: float = 0.0
    """The part of `flops` that rollbacks after anomalies of its own training gave up."""
    reused_flops: float = 0.0
    """The part of `flops` that this run took over from other runs and did not spend."""
    reused_from: tuple[str, ...] = ()
    """The runs that paid for `reused_flops`."""
    evaluation_flops: float = 0.0
    """FLOPs of evaluations, which no other figure contains. Includes replayed ones."""
    cost_is_whole: bool = True
    """Whether the ledger's rows sum up to the FLOPs in the manifest of the final checkpoint, if that is here."""
    spent: Cost = field(default_factory=Cost)
    """What this run spent on it, with replayed steps and without reused ones."""
    replayed: Cost = field(default_factory=Cost)
    """The part of `spent` that went into replayed steps, and into attempts that completed no step."""
    model_cost: Cost | None = None
    """What the model has cost in this stage, by the rule of `flops`: without replayed work, with reused work."""
    mfu: float | None = None
    """Share of the devices' peak speed that its optimizer steps reached; None without a known peak."""
    validation_loss: float | None = None
    """Nats per token at the stage's end, in fp32 from the master weights; None while unfinished. Of a mixture, the mean
    of its sources' by base weights. Measured at the context of the ladder's last stage, in every stage."""
    own_context_loss: float | None = None
    """Like `validation_loss`, at its own context; None if `validation_loss` is measured at that one."""
    perplexity: float | None = None
    bits_per_byte: float | None = None
    top1: float | None = None
    """Share of the validation images that it classifies right; None for text."""
    top5: float | None = None
    evaluated_tokens: int | None = None
    """Validation tokens that `validation_loss` was measured on; None while unfinished."""
    evaluation_precision: str | None = None
    """The precision that it was measured in; None while unfinished."""
    by_source: dict[str, SourceEvaluation] = field(default_factory=dict)
    """The sources of a mixture at the stage's end, or at its last evaluation while it is unfinished, by name. Empty for
    a dataset that is not a mixture."""
    loss_before_growth: float | None = None
    """The previous stage's `validation_loss`, or the start checkpoint's if measured alike; None if there is none, and
    for a stage that does not grow."""
    loss_after_growth: float | None = None
    """Nats per token at step 0 of this stage; None for one that does not grow."""
    samples: tuple[TextSample, ...] = ()
    """The texts that its model wrote once it was finished, if the schedule has prompts."""
    scores: tuple[ScoreEntry, ...] = ()
    """The scores of its final checkpoint, the newest of each kind."""

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
    """As `growctl status` calls it."""


@dataclass(frozen=True, kw_only=True)
class RunReport(RunEntry):
    """One run, as recorded in its ledger. Its name is that of its directory, and `control_of` that of its ladder's."""

    recorded_name: str
    """The name that it was started with. A copied or renamed run has another directory."""
    stages: tuple[StageReport, ...]
    releases: tuple[StageReport, ...] = ()
    """Branches from the stages that end in finished models, in the order of their stages."""
    points: tuple[EvaluationPoint, ...] = ()
    directory: Path
    relaunched: tuple[str, ...] = ()
    """The conditions of its launch that changed when it resumed."""
    machines: tuple[tuple[str, int, str], ...] = ()
    """The device, the number of devices and the precision of its training, reused work included, in its order."""
    anomalies: tuple[tuple[str, AnomalyEntry], ...] = ()
    """Training anomalies, each with the name of its stage."""
    notes: tuple[str, ...] = ()
    """Notes for the reader, one sentence each."""
    controls_to_come: tuple[ControlToCome, ...] = ()
    """The controls of a ladder that are not finished. Empty unless with_controls_to_come looked."""

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
    def swept(self) -> dict[str, Any]:
        """The values of the swept keys, without the seed."""
        return {key: value for key, value in self.overrides.items() if key != "seed"}

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
        """Training FLOPs of all stages so far, without replays, releases and the start checkpoint."""
        return self.stages[-1].cumulative_flops if self.stages else 0.0

    @property
    def description(self) -> str:
        """What kind of run it is, to print beside its name."""
        return f"{self.control}, control of {self.control_of}" if self.control else f"ladder, {self.schedule}"
