"""The records of a ledger. Those in TABLES are the rows of its tables; costs and shares are derived from them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import reduce
from operator import add
from typing import Any
from uuid import uuid4

from model.flops import Flops
from stages.metrics_lines import SourceEvaluation

DERIVED = {"derived": True}
"""Metadata of fields that a ledger works out when it is read, and does not store."""


@dataclass(frozen=True)
class BaseEntry:
    """The checkpoint that a run started from."""

    path: str
    manifest: str
    """sha256 of its manifest.json."""
    run: str | None
    """The run and the stage that trained it; None if they are not known."""
    num_parameters: int
    flops: float | None
    """Training FLOPs that it cost; None if not known."""
    validation_loss: float | None = None
    """Its validation loss on the text that this run validates on, in nats per token; None if not known."""
    validation_tokens: int | None = None
    """The number of validation tokens that `validation_loss` was measured on."""
    tokens: int | None = None
    """Data tokens of the run's training text that it has read; None if not known, or if it has read others."""
    recipe: str | None = None
    """Hash of how it was made, without the seed: equal for the start checkpoints of several seeds. None if its seed is
    not the run's."""


@dataclass(frozen=True)
class RunEntry:
    """The identity of a run."""

    name: str
    schedule: str
    """Path or shipped name, as the user gave it."""
    control: str | None
    """Kind of control (`tokenformer-scratch`, ...); None for a ladder."""
    control_of: str | None
    """The run name of the ladder that a control is compared with; None for a ladder."""
    seed: int
    dataset: str
    """Path of the prepared dataset."""
    dataset_fingerprint: str
    conditions: dict[str, Any] = field(default_factory=dict)
    """Settings that two runs must share for a fair comparison: JSON values by dotted path."""
    ladder_id: str | None = None
    """The `run_id` of the ladder when the control was started; None for a ladder."""
    decays: bool = True
    """Whether the learning rate decays at the end of the run."""
    caveats: list[str] = field(default_factory=list)
    """Caveats for comparisons with this control. Each continues a sentence that starts with the control's name."""
    base: BaseEntry | None = None
    """The checkpoint that it started from; None for a new model."""
    validation_documents: int | None = None
    """Documents in the validation split of its dataset; None if not recorded."""
    validation_tokens: int | None = None
    """Tokens in that split, including the end of text after each document."""
    training_tokens: int | None = None
    """Tokens in the training split; None if not recorded."""
    group: str | None = None
    """The name of the set of runs that it belongs to, such as the seeds of one schedule; None for a run of its own."""
    overrides: dict[str, Any] = field(default_factory=dict)
    """What sets it apart in that set: the swept keys of the schedule, dotted, with its values."""
    run_id: str = field(default_factory=lambda: uuid4().hex)
    """Unique id of the run. A copy has the same id; another run of the same name does not."""


@dataclass(frozen=True)
class StageEntry:
    """The plan for a stage or a release, and the cost of one of its steps."""

    name: str
    """Unique in the ledger; for a release, `STAGE/release`."""
    num_parameters: int
    num_embedding_parameters: int
    budget_tokens: int
    """The budget: data tokens to train in this stage."""
    num_steps: int
    tokens_per_step: int
    step_flops: Flops
    """Training FLOPs of one optimizer step, forward and backward, by part."""
    evaluation_flops_per_token: float
    """FLOPs of a forward pass, per validation token, at the context of the ladder's last stage."""
    own_evaluation_flops_per_token: float | None = None
    """The same at the stage's own context; None if that is the same context."""
    sequence_length: int | None = None
    """The stage's own context, in data tokens; None if not recorded."""
    num_layers: int | None = None
    """Layers of its model; None if not recorded."""
    num_read_parameters: int | None = None
    """Parameters that a data token reads; None: all."""
    branch_of: str | None = None
    """The stage that a release branches from; None for a stage of the ladder."""
    decayed: bool = False
    """Whether the learning rate has decayed at the end, so that it ends in a finished model."""


@dataclass(frozen=True)
class Cost:
    """The cost of some work. Costs can be added."""

    steps: int = 0
    tokens: int = 0
    flops: Flops = field(default=Flops(0.0, 0.0, 0.0))
    """Training FLOPs, by part."""
    evaluation_flops: float = 0.0
    """FLOPs of evaluations, which are not part of `flops`."""
    wall_seconds: float = 0.0
    device_seconds: float = 0.0
    """Wall seconds x devices."""
    step_seconds: float | None = 0.0
    """The part of `wall_seconds` spent in optimizer steps: without start-up, evaluations and checkpoints. None, here
    and below, if it is not known of all the work."""
    available_flops: float | None = 0.0
    """FLOPs that the devices could have done in `step_seconds` at their peak speed."""
    gpu_joules: float | None = 0.0
    """Energy of the GPUs."""
    money: float | None = 0.0
    """Device-hours x price, in the currency of the price."""
    recomputed_flops: float = 0.0
    """FLOPs that activation checkpointing added, which are not part of `flops`; 0 for reused steps."""

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilisation: the share of the devices' peak speed that the optimizer steps reached."""
        return self.flops.total / self.available_flops if self.available_flops else None

    def __add__(self, other: "Cost") -> "Cost":
        return Cost.total([self, other])

    @classmethod
    def total(cls, costs: Sequence["Cost"]) -> "Cost":
        """The sum of some costs; a figure that is not known of one of them is not known."""
        columns = {f.name: [getattr(cost, f.name) for cost in (cls(), *costs)] for f in fields(cls)}
        sums: dict[str, Any] = {name: None if None in each else reduce(add, each) for name, each in columns.items()}
        return cls(**sums)

    def share(self, fraction: float) -> "Cost":
        """The part of this cost that belongs to `fraction` of its steps."""
        values = {f.name: getattr(self, f.name) for f in fields(Cost)}
        if not fraction:  # no part of an unknown value is 0
            values = {name: 0.0 if value is None else value for name, value in values.items()}
        shares: dict[str, Any] = {name: None if value is None else value * fraction for name, value in values.items()}
        return Cost(**shares | {name: round(shares[name]) for name in ("steps", "tokens")})


@dataclass(frozen=True)
class AttemptEntry:
    """One start of a stage's workers, or one reuse of another run's checkpoint."""

    stage: str
    attempt: int
    """Counted from 1."""
    first_step: int
    """Where its first work begins: before `resumed_from` if the attempt before it has lost its last records."""
    resumed_from: int


@dataclass(frozen=True, kw_only=True)
class WorkEntry(Cost):
    """The cost of the steps (first_step, last_step] of one attempt, up to a checkpoint, the end or an interruption."""

    stage: str
    attempt: int
    first_step: int
    last_step: int
    num_records: int
    """The attempt's records in metrics.jsonl that this row and the rows before it cover."""
    closed_by: str
    """`checkpoint`, `end`, `interruption` or `reused`."""
    peak_gpu_bytes: int | None
    """Bytes that torch had allocated, on the GPU where they were most; None on CPUs."""
    peak_resident_bytes: int | None
    """Resident memory (RSS) of the rank where it was largest; None if not known."""
    device: str
    num_devices: int
    precision: str
    paid_by: str | None
    """The run that paid for reused steps; None for this run's own."""
    recorded_at: str
    """ISO 8601, in UTC."""
    kept: float = field(default=1.0, metadata=DERIVED)
    """The share of its steps that no later attempt repeated."""
    rolled_back: float = field(default=0.0, metadata=DERIVED)
    """The share that rollbacks after anomalies gave up; the rest was repeated after interruptions from outside."""


@dataclass(frozen=True)
class SplitCost:
    """Cost, with repeated and reused work counted separately."""

    kept: Cost = Cost()
    rolled_back: Cost = Cost()
    """Steps that training gave up by a rollback after an anomaly of its own."""
    replayed: Cost = Cost()
    """Steps that a later attempt repeated after an interruption from outside, and the time of attempts that completed
    no step."""
    reused: Cost = Cost()
    """Steps taken over from another run, at the cost that they had there."""

    @property
    def spent(self) -> Cost:
        """What this run has spent."""
        return self.kept + self.rolled_back + self.replayed

    @property
    def trained(self) -> Cost:
        """The steps that the model was trained by, whichever run paid for them."""
        return self.kept + self.reused

    @property
    def model(self) -> Cost:
        """What the model has cost, whichever run paid for it: all but what interruptions from outside repeated."""
        return self.trained + self.rolled_back


@dataclass(frozen=True)
class EvaluationEntry:
    """A loss on the validation split. A ledger gives those that still count: no later attempt resumed from before."""

    stage: str
    attempt: int
    step: int
    point: str
    """`after_growth`, `start` (of a release, or of a stage that does not grow), `interval` or `final`."""
    loss: float | None
    """Nats per token, or per image; None if it was not finite. Of a mixture, the mean of its sources' by base
    weights."""
    perplexity: float | None
    bits_per_byte: float | None
    """None also for images."""
    num_tokens: int
    precision: str
    by_source: dict[str, SourceEvaluation] = field(default_factory=dict)
    """The sources of a mixture by name; empty for a dataset that is not a mixture."""
    own_context_loss: float | None = None
    """The loss at the stage's own context; None if that is the context of `loss`, or if it was not finite."""
    own_context_tokens: int | None = None
    """Validation tokens predicted for it."""
    top1: float | None = None
    """Share of the validation images that are classified right; None for text."""
    top5: float | None = None
    """Share whose class is among the five likeliest."""
    flops: float = field(default=0.0, metadata=DERIVED)
    """Training FLOPs that the stage had spent at this evaluation, including replayed work."""


@dataclass(frozen=True)
class AnomalyEntry:
    """A training anomaly, such as a loss spike, and the action taken."""

    stage: str
    attempt: int
    step: int
    seconds: float
    """Seconds since the attempt was launched."""
    kind: str
    """`non_finite` or `spike`."""
    value: float | None
    """The measured value; None if it was not finite."""
    threshold: float | None
    """The limit that the value exceeded; None if it was not finite."""
    action: str
    """`skip`, `rollback` or `stop`."""
    first_step: int | None
    """The first step whose data is skipped; None if none is."""
    num_steps: int | None
    """The number of steps whose data is skipped."""


@dataclass(frozen=True)
class ScoreEntry:
    """One metric of one evaluation of a checkpoint."""

    stage: str
    """The stage as the ledger names it; for a release, `STAGE/release`."""
    checkpoint: str
    """The checkpoint's name in its stage: `final`, `initial`, `step_00001000`."""
    manifest: str
    """sha256 of the checkpoint's manifest.json."""
    evaluated_at: str
    """ISO 8601, in UTC; the same for all scores of one command."""
    task: str
    """A task of lm-evaluation-harness, `text`, `text NAME` for a source of a mixture, or `context-4096`."""
    metric: str
    filter: str
    """How lm_eval extracted the answers; `none` elsewhere."""
    value: float | None
    """None if it was not finite."""
    standard_error: float | None = None
    num_samples: int | None = None
    """Examples of a task; tokens of a text."""
    num_shots: int | None = None
    version: str = ""
    """The version of the task."""
    settings: dict[str, Any] = field(default_factory=dict)
    """What else the value depends on, as JSON values: text, context, stride, limit, dtype, version of lm_eval."""

    @property
    def evaluation(self) -> str:
        """Equal for the metrics of one evaluation, and for its repetitions on the same or another checkpoint."""
        return json.dumps([self.task, self.filter, self.num_shots, self.version, self.settings], sort_keys=True)
