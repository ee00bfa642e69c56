"""The report as values for scripts, and as CSV."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from growctl.analysis.data_groups import DataDocument, data_document
from growctl.analysis.runs import RunReport, StageReport
from growctl.documents.output import plain
from growctl.ledger.ledger import Anomaly, BaseEntry, ScoreEntry, SourceEvaluation
from growctl.loss_costs.document import EqualLossDocument, equal_loss_document
from growctl.published.document import PublishedEntry, published_entry
from growctl.published.overlays import Published
from growctl.report.validation import validation_warning
from growctl.report_setup.environment import Environment, environments
from growctl.report_setup.growths import Growth, growths
from growctl.report_training.document import StageTraining, stages_trained
from growctl.seeds.grouping import BY_SCHEDULE, Grouping
from growctl.seeds.results import Results, results
from growctl.text.escaping import visible
from growctl.verdicts.compare import Comparison, EqualFlops, compare
from growctl.verdicts.family import Family, compare_family, price
from growctl.verdicts.verdict import verdict
from stages.generate.text_samples import TextSample

_FORMULA = ("=", "+", "-", "@", "\t")
"""Characters that make a spreadsheet read a cell as a formula, or that it skips before one."""


@dataclass(frozen=True)
class StageEntry:
    """The size, cost and quality of a stage, or of its release."""

    name: str
    num_parameters: int
    train_tokens: int
    """Data tokens trained in the stage, without replayed ones."""
    flops: float
    """Training FLOPs of this stage alone, without `replayed_flops`, whichever run paid for them."""
    cumulative_flops: float
    """Training FLOPs of the start checkpoint, all stages before and this one, without replays and other releases."""
    wall_seconds: float
    """Includes replayed steps, but not reused ones."""
    validation_loss: float | None
    """Nats per token at the stage's end, in fp32 from the master weights; None while unfinished, or if not finite. Of
    a mixture, the mean of its sources' by base weights."""
    perplexity: float | None
    """exp(validation_loss)."""
    loss_before_growth: float | None
    """Validation loss at the previous stage's end, or of the start checkpoint if it was measured alike; None if there
    is none."""
    loss_after_growth: float | None
    """Validation loss at step 0 of this stage; None for a first stage without a start checkpoint."""
    device_seconds: float
    """Wall seconds x devices. Includes replayed steps, but not reused ones."""
    replayed_flops: float
    """Training FLOPs that a later attempt had to spend again."""
    replayed_device_seconds: float
    """The part of `device_seconds` spent on replayed steps and on attempts that completed no step."""
    bits_per_byte: float | None
    sequence_length: int | None
    """The stage's own context, in data tokens; None if not recorded."""
    num_layers: int | None
    """Layers of its model; None if not recorded."""
    batch_size: int | None
    """Sequences of an optimizer step; None if not recorded."""
    own_context_loss: float | None
    """Like `validation_loss`, at the stage's own context. Losses are measured at the context of the ladder's last
    stage; None for a stage of that context."""
    by_source: dict[str, SourceEvaluation]
    """The sources of a mixture, by name, at the stage's end or, while it is unfinished, at its last evaluation. Empty
    for a dataset that is not a mixture."""
    finished: bool
    reused_flops: float
    """The part of `flops` that this run took over from other runs and did not spend."""
    reused_from: tuple[str, ...]
    """The runs that paid for `reused_flops`."""
    recomputed_flops: float
    """FLOPs that activation checkpointing added, which no other figure contains. Includes replayed steps, but not
    reused ones."""
    branch_of: str | None
    """The stage that a release branches from; None for a stage of the ladder."""
    step_seconds: float | None
    """The part of `wall_seconds` spent in optimizer steps: without start-up, evaluations and checkpoints. None, here
    and below, if it is not known of all the work."""
    mfu: float | None
    """Model FLOPs utilisation: share of the devices' peak speed that those steps reached; None without a known
    peak."""
    peak_gpu_bytes: int | None
    """Bytes that torch had allocated at the peak, on the GPU where they were most; None on CPUs."""
    peak_resident_bytes: int | None
    """Resident memory (RSS) at the peak, of the rank where it was largest."""
    gpu_joules: float | None
    """Energy of the GPUs, by NVML. Includes replayed steps, but not reused ones; so does what follows."""
    cpu_joules: float | None
    """Energy of the machines' processors and memory, by RAPL, whichever process used it."""
    money: float | None
    """Device-hours x `launch.hardware.price_per_device_hour`, in its currency."""
    replayed_gpu_joules: float | None
    """The part of `gpu_joules` that belongs to `replayed_device_seconds`; so of the next two."""
    replayed_cpu_joules: float | None
    replayed_money: float | None

    @classmethod
    def of(cls, stage: StageReport) -> "StageEntry":
        """The entry of a stage."""
        return cls(**{field.name: getattr(stage, field.name) for field in fields(cls)})


@dataclass(frozen=True)
class SampleEntry:
    """A text that a finished stage's model wrote."""

    stage: str
    prompt: str
    text: str
    """What the model wrote after the prompt."""
    finish_reason: str
    """Why the text ends: `end_of_text`, `stop`, `length` or `context`."""

    @classmethod
    def of(cls, stage: str, sample: TextSample) -> "SampleEntry":
        """The entry of a text."""
        return cls(stage, sample.prompt, sample.text, sample.finish_reason)


@dataclass(frozen=True, kw_only=True)
class AnomalyEntry(Anomaly):
    """A rejected update of training."""

    stage: str


@dataclass(frozen=True, kw_only=True)
class ComparisonEntry:
    """A ladder compared with its controls of one kind."""

    control: str
    """The kind of the controls."""
    num_parameters: int | None
    """Their size; None for `best-scratch`, which compares with every size of the ladder."""
    control_runs: tuple[str, ...]
    """The names of the controls that count."""
    flops_to_equal_loss: float | None
    """FLOPs that the controls need for the ladder's final loss; None if they do not bracket it."""
    saving: float | None
    """`flops_to_equal_loss` / the ladder's FLOPs; below 1, growing cost more."""
    equal_flops: EqualFlops | None
    """The comparison at equal FLOPs; None if no control has them."""
    verdict: tuple[str, ...]
    """The conclusions, one sentence each, the most important first."""


@dataclass(frozen=True, kw_only=True)
class ModelEntry(ComparisonEntry):
    """A finished model of a ladder compared with controls of its own size."""

    stage: str


@dataclass(frozen=True)
class FamilyEntry:
    """All finished models of a ladder compared with controls of their own sizes."""

    flops: float
    """FLOPs of all of them by growing: every stage up to the last of them once, and every release."""
    flops_from_scratch: float | None
    """FLOPs for the losses of all of them from scratch; None unless controls bracket each of them."""
    saving: float | None
    """`flops_from_scratch` / `flops`; below 1, growing cost more."""
    models: tuple[ModelEntry, ...]
    verdict: tuple[str, ...]
    """The conclusions, one sentence each."""


@dataclass(frozen=True)
class ValidationSize:
    """The text that the validation losses of a run were measured on."""

    num_documents: int
    num_tokens: int


@dataclass(frozen=True)
class ReportedRun:
    """A ladder or a control."""

    name: str
    schedule: str
    """Path or shipped name, as the user gave it."""
    control: str | None
    """Kind of control; None for a ladder."""
    seed: int
    """The seed of the weights and of the order of the data."""
    group: str | None
    """The name of the set of runs that it belongs to, such as the seeds of one schedule; None for a run of its own."""
    overrides: dict[str, Any]
    """What sets it apart in that set: the swept keys of the schedule, dotted, with its values."""
    base: BaseEntry | None
    """The checkpoint that it started from; None for a new model."""
    stages: tuple[StageEntry, ...]
    """A stage's release follows it."""
    training: tuple[StageTraining, ...]
    """How each of them trained, without the curves: metrics.jsonl has these."""
    samples: tuple[SampleEntry, ...]
    scores: tuple[ScoreEntry, ...]
    """What `growctl eval` found on the final checkpoints of its stages."""
    anomalies: tuple[AnomalyEntry, ...]
    growths: tuple[Growth, ...]
    """What each growth did to the validation loss."""
    environments: tuple[Environment, ...]
    """What the run itself was trained on, in the order of the work."""
    notes: tuple[str, ...]
    """Notes for the reader, one sentence each."""
    validation: ValidationSize | None
    """None if the ledger does not record it."""
    warnings: tuple[str, ...]
    """Such as a validation set that is too small, one sentence or two each."""
    comparisons: tuple[ComparisonEntry, ...]
    """A ladder's comparisons with its controls; empty for a control."""
    family: FamilyEntry | None
    """None for a control, and for a ladder without releases and without controls of each size."""


@dataclass(frozen=True)
class ReportDocument:
    """What runs cost and how good their models are. Unknown and non-finite values are null."""

    runs: tuple[ReportedRun, ...]
    """Each ladder is followed by its controls."""
    results: Results
    """What they show together: headlines, seeds, sweeps, ladders compared."""
    equal_loss: EqualLossDocument
    """What each run would have had to spend for the losses that the others reached."""
    data: DataDocument
    """The datasets of the runs."""
    published: tuple[PublishedEntry, ...]
    """The figures of --overlay, which nothing else in this document uses."""


def report_document(
    runs: Sequence[RunReport], grouping: Grouping = BY_SCHEDULE, overlays: Sequence[Published] = ()
) -> ReportDocument:
    """The report on `runs` for scripts. `overlays`: published figures to list apart."""
    return ReportDocument(
        runs=tuple(_run(run, runs) for run in runs),
        results=results(runs, grouping),
        equal_loss=equal_loss_document(runs),
        data=data_document(runs),
        published=tuple(map(published_entry, overlays)),
    )


def _run(run: RunReport, runs: Sequence[RunReport]) -> ReportedRun:
    is_ladder = run.control is None
    return ReportedRun(
        name=run.name,
        schedule=run.schedule,
        control=run.control,
        seed=run.seed,
        group=run.group,
        overrides=run.overrides,
        base=run.base,
        stages=tuple(map(StageEntry.of, run.parts)),
        training=stages_trained(run),
        samples=tuple(SampleEntry.of(stage.name, sample) for stage in run.parts for sample in stage.samples),
        scores=tuple(score for stage in run.parts for score in stage.scores),
        anomalies=tuple(AnomalyEntry(stage=stage, **asdict(anomaly)) for stage, anomaly in run.anomalies),
        growths=growths(run),
        environments=environments(run),
        notes=tuple(run.notes),
        validation=_validation(run),
        warnings=(warning,) if (warning := validation_warning(run)) else (),
        comparisons=tuple(ComparisonEntry(**_figures(found)) for found in compare(run, runs)) if is_ladder else (),
        family=_family(compare_family(run, runs)) if is_ladder else None,
    )


def _validation(run: RunReport) -> ValidationSize | None:
    if run.validation_documents is None or run.validation_tokens is None:
        return None
    return ValidationSize(run.validation_documents, run.validation_tokens)


def _figures(comparison: Comparison) -> dict[str, Any]:
    """The fields of a ComparisonEntry."""
    return {
        "control": comparison.control,
        "num_parameters": comparison.num_parameters,
        "control_runs": comparison.control_runs,
        "flops_to_equal_loss": comparison.flops_to_equal_loss,
        "saving": comparison.saving,
        "equal_flops": None if comparison.missing_sizes else comparison.equal_flops,
        "verdict": verdict(comparison),
    }


def _family(family: Family | None) -> FamilyEntry | None:
    if family is None:
        return None
    return FamilyEntry(
        flops=family.flops,
        flops_from_scratch=family.flops_from_scratch,
        saving=family.saving,
        models=tuple(ModelEntry(stage=model.ladder.stages[-1].name, **_figures(model)) for model in family.models),
        verdict=tuple(price(family)),
    )


def stages_csv(runs: Sequence[RunReport]) -> str:
    """A line for each stage of each run, in the units of `report_document`; unknown values are empty.

    `base_flops`, the cost of the run's start checkpoint, is part of `cumulative_flops`, and 0 without one.

    Text that a spreadsheet would read as a formula gets an apostrophe in front.
    """
    rows = [
        {"run": run.name, "schedule": run.schedule, "control": run.control, "stage": stage.pop("name")}
        | stage
        | {"base_flops": run.base.flops if run.base else 0.0}
        for run in runs
        for stage in map(plain, map(StageEntry.of, run.parts))
    ]
    buffer = io.StringIO()
    if rows:
        writer = csv.DictWriter(buffer, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: for_spreadsheet(value) for key, value in row.items()} for row in rows)
    return buffer.getvalue()


def for_spreadsheet(value: Any) -> Any:
    """A cell of a CSV file: text that a spreadsheet would read as a formula gets an apostrophe in front. A block is
    JSON, or empty."""
    if isinstance(value, list):
        value = " ".join(value)
    if isinstance(value, dict):
        value = json.dumps(value) if value else None
    if not isinstance(value, str):
        return value
    text = visible(value)  # a bare carriage return would start a new line
    return f"'{text}" if text.startswith(_FORMULA) else text
