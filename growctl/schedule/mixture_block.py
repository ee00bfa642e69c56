"""The keys of a mixture: its sources under `data.mixture`, and their weights by stage."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, NonNegativeInt

from growctl.schedule.example import example
from growctl.schedule.launch_block import Block
from growctl.schedule.quantities import Count
from stages.data.spec import SourceName, SourceSpec

MOST_SOURCES = 256
WhenExhausted = Literal["stop", "others"]
Weights = dict[SourceName, Annotated[float, Field(ge=0.0, le=1e9)]]


def _text_of_a_corpus(schema: dict[str, Any]) -> None:
    """A corpus stands for a name and a source in a file; growctl puts both in before it validates the entry."""
    schema["required"] = ["weight"]
    schema["anyOf"] = [{"required": ["corpus"]}, {"required": ["name", "source"]}]


class MixtureBlock(SourceSpec):
    """A source of a mixture: a text of its own, and how much of the training samples it gives."""

    model_config = ConfigDict(allow_inf_nan=False, use_attribute_docstrings=True, json_schema_extra=_text_of_a_corpus)

    name: Annotated[SourceName, example("books")]
    """Label, unique in the mixture, used in `stages.N.mixture`, tables and reports; by default that of its corpus."""
    weight: Annotated[float, Field(gt=0.0, le=1e9), example(0.3, "pure number")]
    """Its share of the training samples is this number, divided by the sum of all weights. The validation loss weights
    the sources by it too, at every stage."""
    epochs_at_most: Annotated[float | None, Field(gt=0.0, le=1e6), example(4, "epochs")] = None
    """How often training may read it; by default as often as its weight asks for. `data.when_exhausted` says what
    follows."""
    corpus: Annotated[str | None, Field(exclude=True), example("fineweb_edu")] = None
    """A choice for `data` that growctl ships (docs/data.md), or a file data/NAME.yaml of yours. It sets the keys of
    this entry that are not set here; its tokenizer does not count."""
    approximate_tokens: Annotated[Count | None, example("4.1M", "data tokens")] = None
    """Rough number of training tokens in the text. `plan` computes epochs from it until the dataset is prepared."""


class FollowedWeights(Block):
    """Weights from a step of a stage on. growctl writes them into a control, which follows its ladder's stages."""

    first_step: NonNegativeInt
    """Counted from the stage's first step."""
    weights: Weights


def shares(weights: Mapping[str, float]) -> dict[str, Fraction]:
    """The share of each source, by its name. Decimal numbers keep their exact ratios; a weight of 0 is no source."""
    exact = {name: Fraction(str(weight)) for name, weight in weights.items() if weight}
    total = sum(exact.values(), Fraction(0))
    return {name: weight / total for name, weight in sorted(exact.items())}
