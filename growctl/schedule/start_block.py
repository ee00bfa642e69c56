"""The `start` block of a schedule, and what growctl must know of the checkpoint that it names."""

from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    TypeAdapter,
    field_validator,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema

from growctl.find_checkpoint import find_checkpoint, find_named
from growctl.runs_dir import RunPaths, RunsPaths
from growctl.schedule.fields import Block
from model.errors import UserError
from model.policy import TauPolicy
from model.shapes import ModelConfig, num_parameters
from model.strict import example
from stages.checkpoint.lineage import HistoryEntry, TrainingRecord, recipe_of
from stages.checkpoint.manifest import CheckpointError, Manifest, manifest_hash, verify_checkpoint
from stages.spec import MixtureSpan, Packing

_MODEL: TypeAdapter[ModelConfig] = TypeAdapter(ModelConfig)


class BaseBlock(Block):
    """What growctl knows of the start checkpoint. growctl writes it into the run's own schedule; users leave it out."""

    path: str
    """The checkpoint's directory, absolute."""
    manifest: str
    """sha256 of its manifest.json."""
    recipe: str | None = None
    """sha256 of how it was made, without the seeds; None if that is not known."""
    kind: Literal["parameters", "engine"]
    run: str | None = None
    """The run and the stage that trained it; None if they are not known."""
    tokens: NonNegativeInt | None = None
    """Data tokens that it was trained on; None if not known."""
    flops: NonNegativeFloat | None = None
    """Training FLOPs that it cost; None if not known."""
    samples_seen: NonNegativeInt = 0
    """Its position in the data."""
    seed: int = 0
    """The seed of the order of its data."""
    dataset_fingerprint: str | None = None
    """The dataset that it was trained on last."""
    read_others: bool = False
    """Whether it was trained on other datasets before."""
    tokenizer_sha256: str | None = None
    begin_of_text: str | None = None
    """What it expects before each text."""
    sequence_length: NonNegativeInt | None = None
    """The context length that it was trained with last; None if not known."""
    window_length: NonNegativeInt | None = None
    """The longest context of its ladder, on whose windows the order of its data was defined; None if not known."""
    evaluation_length: NonNegativeInt | None = None
    """The context at which its loss was measured; None if not known."""
    packing: Packing = "concatenate"
    """How documents became the sequences that it was trained on last."""
    mixture: list[MixtureSpan] = []
    """The weights of a mixture's sources along its training; empty if it was trained on one text."""
    loss: float | None = None
    """Its validation loss in nats per token, in float32; None if not known."""
    loss_tokens: NonNegativeInt | None = None
    """The number of validation tokens that the loss was measured on."""
    expanded_with: TauPolicy | None = None
    """What its growth does to tau, if it has not been trained since it was expanded; else None."""
    model_json: str
    """Its model configuration, as JSON."""

    @field_validator("model_json")
    @classmethod
    def _is_model(cls, value: str) -> str:
        _parsed(value)
        return value

    @property
    def model(self) -> ModelConfig:
        """Its model configuration."""
        return _parsed(self.model_json)

    @property
    def num_parameters(self) -> int:
        """Its number of parameters."""
        return num_parameters(self.model)


class StartBlock(Block):
    """The checkpoint that the first stage starts from; if the stage is larger, the checkpoint is grown first. Set
    either `checkpoint` or `run`. By default a run starts from a new model."""

    checkpoint: Annotated[str | None, Field(min_length=1), example("runs/quickstart/stages/0-115k/final")] = None
    """The directory of a checkpoint, a stage or a run, or a name: RUN (its newest finished stage), RUN/STAGE,
    RUN/STAGE/release or RUN/STAGE/step_..."""
    run: Annotated[str | None, Field(min_length=1), example("quickstart")] = None
    """The run to start from, in the same runs directory."""
    stage: Annotated[str | None, Field(min_length=1), example("115k")] = None
    """The stage of `run` to start from: STAGE (its final/), STAGE/release or STAGE/step_...; by default the
    newest finished stage."""
    flops: Annotated[PositiveFloat | None, example(1e20, "FLOPs")] = None
    """Training FLOPs that the checkpoint cost; by default what its manifest records."""
    base: SkipJsonSchema[BaseBlock | None] = None
    """What growctl knows of the checkpoint. growctl writes it; leave it out."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.checkpoint is None) == (self.run is None):
            raise ValueError("needs either checkpoint or run" + (", not both" if self.run else ""))
        if self.stage is not None and self.run is None:
            raise ValueError(f"stage = {self.stage!r} goes with run, not with checkpoint")
        return self

    @property
    def known_flops(self) -> float | None:
        """Training FLOPs that the checkpoint cost: as given, else as recorded; None if not known."""
        recorded = self.base.flops if self.base else None
        return recorded if self.flops is None else self.flops


@lru_cache(maxsize=64)
def _parsed(text: str) -> ModelConfig:
    return _MODEL.validate_json(text)


def describe_start(start: StartBlock, runs_dir: Path) -> BaseBlock:
    """What growctl must know of the checkpoint that `start` names. Reads its manifest and the sizes of its files.

    Raises UserError, starting with the key at fault, if there is no such checkpoint or it is broken.
    """
    try:
        path = _find(start, runs_dir).absolute()
        return _described(path, verify_checkpoint(path, hashes=False))
    except CheckpointError as error:
        key = "checkpoint" if start.checkpoint else "run"
        if start.stage and RunsPaths(runs_dir).run(str(start.run)).exists():
            key = "stage"
        from growctl.schedule.files import shipped_schedules  # which needs this module

        first = f"; `growctl run {start.run}` trains it" if start.run in shipped_schedules() else ""
        raise UserError(f"start.{key} = {getattr(start, key)!r}: {error}{first if key == 'run' else ''}") from error


def _find(start: StartBlock, runs_dir: Path) -> Path:
    """The directory of the checkpoint that `start` names: whatever the commands that take a checkpoint would use.

    A relative `start.checkpoint` is a name: `growctl.schedule.compose` has made paths absolute.
    """
    if start.checkpoint is not None and Path(start.checkpoint).is_absolute():
        return find_checkpoint(start.checkpoint, runs_dir, tell=lambda line: None)
    if start.checkpoint is not None:
        return find_named(start.checkpoint, runs_dir)
    return find_named("/".join(name for name in (start.run, start.stage) if name), runs_dir)


def _described(path: Path, manifest: Manifest) -> BaseBlock:
    lineage = manifest.lineage
    cost = lineage.cost if lineage.cost and lineage.cost.complete else None
    trainings = [entry for entry in lineage.history if entry.operation == "train"]
    trained = trainings[-1] if trainings else None
    record = (lineage.training if manifest.kind == "parameters" else None) or TrainingRecord()
    policy = lineage.growth.policy if lineage.growth else None
    determined_by = trained.determined_by if trained else {}
    sequence_length = determined_by.get("sequence_length")
    return BaseBlock(
        path=str(path),
        manifest=manifest_hash(path),
        recipe=recipe_of(lineage.history) if lineage.history else None,
        kind=manifest.kind,
        run=_run(path, trained),
        tokens=cost.tokens if cost else None,
        flops=cost.flops.total if cost else None,
        samples_seen=manifest.samples_seen,
        seed=manifest.seed,
        dataset_fingerprint=manifest.dataset_fingerprint,
        read_others=len({entry.determined_by.get("dataset") for entry in trainings}) > 1,
        tokenizer_sha256=manifest.tokenizer_sha256,
        begin_of_text=manifest.text.begin_of_text,
        sequence_length=sequence_length,
        window_length=determined_by.get("window_length", sequence_length),
        evaluation_length=record.evaluations.length if record.evaluations else None,
        packing=determined_by.get("packing", "concatenate"),
        mixture=_mixture(trained) if trained else [],
        loss=record.validation_loss,
        loss_tokens=record.validation_tokens,
        expanded_with=policy.tau if policy else "frozen" if lineage.growth else None,
        model_json=manifest.model.model_dump_json(),
    )


def _run(path: Path, trained: HistoryEntry | None) -> str | None:
    """The run and the stage that trained a checkpoint: from its path inside a run, or else from its history."""
    stage = path.parent
    if stage.parent.name == RunPaths(Path()).stages.name and RunPaths(stage.parents[1]).schedule.is_file():
        return f"{stage.parents[1].name}, stage {stage.name.partition('-')[2]}"
    return trained.made_in if trained else None


def _mixture(trained: HistoryEntry) -> list[MixtureSpan]:
    """The weights of a mixture's sources along the training of a checkpoint; empty if it read one text."""
    pieces: list[tuple[int, dict[str, float]]] = trained.determined_by.get("mixture", [])
    return [MixtureSpan(first_window=first, weights=weights) for first, weights in pieces]
