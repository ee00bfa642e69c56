"""Published figures, to be drawn beside measured ones: files of rows as someone else published them.

They are a layer of their own, labelled as published. No comparison, headline or verdict reads them.
"""

import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PositiveInt, ValidationError, model_validator

from growctl.schedule.errors import describe, several
from growctl.text.suggestion import did_you_mean, nearest
from model.config import TokenformerConfig, TransformerConfig, tokenformer_config
from model.errors import UserError
from model.flops import training_flops_per_token
from model.strict import Strict
from stages.plain_yaml import UNREADABLE, parse, read_text, why_unreadable

FOLDER = Path(__file__).with_name("tables")
"""The files that come with growctl."""

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Percent = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]
Text = Annotated[str, Field(min_length=1)]

_FACTORS = {
    "steps": 1.0,
    "tokens": 1.0,
    "M tokens": 1e6,
    "B tokens": 1e9,
    "FLOPs": 1.0,
    "PFLOP/s-days": 8.64e19,
    "seconds": 1 / 3600,
    "hours": 1.0,
}
"""What a unit is in tokens or steps, FLOPs, or hours."""


class Units(Strict):
    """The unit of each column that has one, as published."""

    tokens: Literal["tokens", "M tokens", "B tokens", "steps"] | None = None
    """Steps count with `tokens_per_step`."""
    perplexity: Literal["perplexity"] | None = None
    loss: Literal["nats per token"] | None = None
    flops: Literal["FLOPs", "PFLOP/s-days"] | None = None
    device_hours: Literal["hours", "seconds"] | None = None
    """Of one device."""
    money: Text | None = None
    """The currency."""
    lambada_perplexity: Literal["perplexity"] | None = None
    lambada: Literal["percent"] | None = None
    hellaswag: Literal["percent"] | None = None
    piqa: Literal["percent"] | None = None
    arc_easy: Literal["percent"] | None = None
    arc_challenge: Literal["percent"] | None = None
    winogrande: Literal["percent"] | None = None
    average: Literal["percent"] | None = None


class Shape(Strict):
    """The shape of a model, from which growctl computes FLOPs: a Tokenformer if it has tokens, else a Transformer."""

    layers: PositiveInt
    hidden: PositiveInt
    vocabulary: PositiveInt
    attention_tokens: PositiveInt | None = None
    """Parameter tokens of each of Q, K, V and O."""
    ffn_tokens: PositiveInt | None = None

    @model_validator(mode="after")
    def _both_or_neither(self) -> Self:
        if (self.attention_tokens is None) != (self.ffn_tokens is None):
            raise ValueError("attention_tokens and ffn_tokens belong together: give both, or neither")
        return self

    def config(self) -> TokenformerConfig | TransformerConfig:
        """The model, with one head: the number of heads changes no FLOPs."""
        shape: dict[str, Any] = {"hidden_size": self.hidden, "vocab_size": self.vocabulary, "num_heads": 1}
        shape |= {"num_layers": self.layers, "rotary_fraction": 0.0}
        if self.attention_tokens is not None and self.ffn_tokens is not None:
            return tokenformer_config(attention_tokens=self.attention_tokens, ffn_tokens=self.ffn_tokens, **shape)
        return TransformerConfig(ffn_size=4 * self.hidden, **shape)


class Row(Strict):
    """A published model. Its costs are those of its own training alone, without those of the model it grew from."""

    model: Text
    """Its name, which no other row has."""
    series: Text
    """Rows of one series are joined by a line."""
    size: Text | None = None
    data: Text | None = None
    """What it was trained on, where that differs from the other rows."""
    grown_from: Text | None = None
    """The model that it was grown from, by its name in a row above."""
    shape: Text | None = None
    """A name in `shapes`."""
    tokens: Positive | None = None
    perplexity: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None = None
    loss: Positive | None = None
    flops: Positive | None = None
    device_hours: Positive | None = None
    money: Positive | None = None
    lambada_perplexity: Positive | None = None
    lambada: Percent | None = None
    hellaswag: Percent | None = None
    piqa: Percent | None = None
    arc_easy: Percent | None = None
    arc_challenge: Percent | None = None
    winogrande: Percent | None = None
    average: Percent | None = None


class Published(Strict):
    """A file of published figures."""

    title: Text
    source: Text
    """The publication, with the number or name of the table or figure."""
    data: Text
    """What the models were trained and measured on."""
    units: Units
    rows: Annotated[list[Row], Field(min_length=1)]
    context: PositiveInt | None = None
    """Data tokens that the models saw at once."""
    tokens_per_step: PositiveInt | None = None
    shapes: dict[str, Shape] = {}
    notes: list[Text] = []

    @model_validator(mode="after")
    def _names_are_known(self) -> Self:
        problems = list(_problems(self))
        if problems:
            raise ValueError("\n".join(problems))
        return self

    def row(self, name: str) -> Row:
        """The row of that model."""
        return next(row for row in self.rows if row.model == name)

    def perplexity(self, row: Row) -> float | None:
        """The published perplexity of a row, or that of its published loss."""
        return row.perplexity if row.loss is None else math.exp(row.loss)

    def tokens(self, row: Row) -> float | None:
        """The data tokens that a row trained on, without the model it grew from."""
        unit = self.units.tokens
        if row.tokens is None or unit is None:
            return None
        return row.tokens * _FACTORS[unit] * (self.tokens_per_step or 0 if unit == "steps" else 1)

    def computes_flops(self, row: Row) -> bool:
        """Whether the FLOPs of a row, or of a model that it grew from, are growctl's and not published."""
        return row.flops is None or bool(row.grown_from and self.computes_flops(self.row(row.grown_from)))

    def cost(self, row: Row, key: str) -> float | None:
        """The cost of a row from the first model on, in the unit of growctl/verdicts/costs.py; None if it is not known.

        FLOPs that were not published follow from the shape and the tokens, by growctl's own formula.
        """
        own = getattr(row, key)
        if own is not None:
            own *= _FACTORS.get(getattr(self.units, key), 1.0)
        elif key == "flops" and row.shape and self.context and (tokens := self.tokens(row)):
            own = tokens * training_flops_per_token(self.shapes[row.shape].config(), self.context).total
        before = self.cost(self.row(row.grown_from), key) if row.grown_from else 0.0
        return None if own is None or before is None else before + own


def _problems(published: Published) -> Iterator[str]:
    names: list[str] = []
    for index, row in enumerate(published.rows):
        where = f"rows.{index}"
        if row.model in names:
            yield f"{where}.model = {row.model!r}: must differ from the models above"
        if row.grown_from is not None and row.grown_from not in names:
            allowed = f"must be the model of a row above{did_you_mean(row.grown_from, names)}"
            yield f"{where}.grown_from = {row.grown_from!r}: {allowed}"
        if row.shape is not None and row.shape not in published.shapes:
            near = did_you_mean(row.shape, list(published.shapes))
            yield f"{where}.shape = {row.shape!r}: must be one of shapes{near}"
        if row.perplexity is not None and row.loss is not None:
            yield f"{where}: has both a perplexity and a loss; give what was published"
        names.append(row.model)
    for column in Units.model_fields:
        used = [index for index, row in enumerate(published.rows) if getattr(row, column) is not None]
        if used and getattr(published.units, column) is None:
            yield f"units.{column}: is missing; rows.{used[0]} has {column}"
    if published.units.tokens == "steps" and published.tokens_per_step is None:
        yield "tokens_per_step: is missing; units.tokens is 'steps'"
    if published.context is None and any(row.shape for row in published.rows):
        yield "context: is missing; FLOPs follow from a shape and a context"


def overlay_names() -> list[str]:
    """The names of the files that come with growctl."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load_overlay(name: str) -> Published:
    """The published figures called `name`, or in the file of that path. Raises UserError if there are none."""
    path = Path(name)
    if name in overlay_names() and not path.is_file():
        return shipped(name)
    if not path.is_file():
        known = overlay_names()
        raise UserError(
            f"--overlay {name}: is neither a file nor one of {', '.join(known)}; {nearest(Path(name).stem, known)}"
        )
    return _load(path)


@cache
def shipped(name: str) -> Published:
    """The published figures of that name, which come with growctl."""
    return _load(FOLDER / f"{name}.yaml")


def _load(path: Path) -> Published:
    try:
        data = parse(read_text(path, "file of published figures"), "file of published figures")
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    except (*UNREADABLE, OSError) as error:
        raise UserError(f"{path}: cannot be read: {why_unreadable(error)}") from error
    if not isinstance(data, dict):
        keys = ", ".join(Published.model_fields)
        raise UserError(f"{path}: has no published figures; such a file has the keys {keys}")
    try:
        return Published.model_validate(data)
    except ValidationError as error:
        raise UserError(f"{path}: {several(describe(error, Published))}") from error
