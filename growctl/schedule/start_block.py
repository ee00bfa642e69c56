"""The `start` block of a schedule: the checkpoint that a run starts from, instead of a new model."""

from functools import lru_cache
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

from growctl.schedule.example import example
from growctl.schedule.launch_block import Block
from model.config import ModelConfig, TokenformerConfig, TransformerConfig, num_parameters
from model.policy import TauPolicy
from stages.spec import MixtureSpan, Packing

_MODEL: TypeAdapter[TokenformerConfig | TransformerConfig] = TypeAdapter(ModelConfig)


class BaseBlock(Block):
    """What growctl knows of the start checkpoint. growctl writes it into the run's own schedule; users leave it out."""

    path: str
    """The checkpoint's directory, absolute."""
    manifest: str
    """sha256 of its manifest.json."""
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
    tokenizer_sha256: str | None = None
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
    def model(self) -> TokenformerConfig | TransformerConfig:
        """Its model configuration."""
        return _parsed(self.model_json)

    @property
    def num_parameters(self) -> int:
        """Its number of parameters."""
        return num_parameters(self.model)


class StartBlock(Block):
    """The checkpoint that the first stage grows, or trains on if it has the stage's size. Set either `checkpoint` or
    `run`. By default a run starts from a new model."""

    checkpoint: Annotated[str | None, Field(min_length=1), example("runs/quickstart/stages/0-115k/final")] = None
    """A checkpoint as every command takes it: its directory, a stage's or a run's directory, or RUN, RUN/STAGE,
    RUN/STAGE/release or RUN/STAGE/step_... by name."""
    run: Annotated[str | None, Field(min_length=1), example("quickstart")] = None
    """A run in the same runs directory."""
    stage: Annotated[str | None, Field(min_length=1), example("115k")] = None
    """The stage of that run whose final/ to start from, or STAGE/release or STAGE/step_...; by default the newest
    finished stage."""
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
def _parsed(text: str) -> TokenformerConfig | TransformerConfig:
    return _MODEL.validate_json(text)
