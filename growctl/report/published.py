"""Published figures, to be drawn beside measured ones. No comparison, headline or verdict reads them."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, PositiveInt, ValidationError, model_validator

from growctl.report.chart import Mark, Series
from growctl.schedule.errors import describe, several
from growctl.text.formatting import scientific, short_count
from growctl.text.section import Cell, Column, Paragraph, Part, Rows, Section, Table, figure, rows_of
from growctl.text.suggestion import did_you_mean, nearest
from model.config import TokenformerConfig, TransformerConfig, tokenformer_config
from model.errors import UserError
from model.flops import training_flops_per_token
from model.strict import Strict
from stages.plain_yaml import read_yaml

_FOLDER = Path(__file__).with_name("published_figures")

_COSTS = ("flops", "device_hours", "money")

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Text = Annotated[str, Field(min_length=1)]


class PublishedShape(Strict):
    """The shape of a model, from which growctl computes FLOPs: a Tokenformer if it has tokens, else a Transformer."""

    layers: PositiveInt
    hidden: PositiveInt
    vocabulary: PositiveInt
    attention_tokens: PositiveInt | None = None
    """Parameter tokens of each of Q, K, V and O."""
    ffn_tokens: PositiveInt | None = None

    def config(self) -> TokenformerConfig | TransformerConfig:
        """The model, with one head: the number of heads changes no FLOPs."""
        shape: dict[str, Any] = {"hidden_size": self.hidden, "vocab_size": self.vocabulary, "num_heads": 1}
        shape |= {"num_layers": self.layers, "rotary_fraction": 0.0}
        if self.attention_tokens is not None and self.ffn_tokens is not None:
            return tokenformer_config(attention_tokens=self.attention_tokens, ffn_tokens=self.ffn_tokens, **shape)
        return TransformerConfig(ffn_size=4 * self.hidden, **shape)


class PublishedModel(Strict):
    """A model as someone else published it. In a file, costs are those of its own training alone; `load_overlay` adds
    those of the model that it grew from, and FLOPs that were not published."""

    model: Text
    series: Text
    """Models of one series are joined by a line."""
    size: Text | None = None
    data: Text | None = None
    """What it was trained and measured on; None: the data of the file."""
    grown_from: Text | None = None
    shape: Text | None = None
    tokens: Positive | None = None
    """Data tokens of its own training, without those of the model it was grown from."""
    perplexity: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None = None
    flops: Positive | None = None
    device_hours: Positive | None = None
    money: Positive | None = None
    scores: dict[str, Positive] = {}
    flops_computed: bool = False
    """Whether growctl computed the FLOPs, or those of a model that it grew from, from the shape and the tokens."""

    @property
    def costs(self) -> dict[str, float]:
        """The costs that are known, by the key of their axis."""
        return {key: cost for key in _COSTS if (cost := getattr(self, key)) is not None}


class Published(Strict):
    """Figures that others published and growctl did not measure."""

    title: Text
    source: Text
    """The publication, with the number or name of the table or figure."""
    data: Text
    rows: Annotated[list[PublishedModel], Field(min_length=1)]
    context: PositiveInt | None = None
    shapes: dict[str, PublishedShape] = {}
    notes: list[Text] = []

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        for index, row in enumerate(self.rows):
            above = [other.model for other in self.rows[:index]]
            for key, names in (("grown_from", above), ("shape", [*self.shapes])):
                if (name := getattr(row, key)) is not None and name not in names:
                    what = "the model of a row above" if key == "grown_from" else "one of shapes"
                    raise ValueError(f"rows.{index}.{key} = {name!r}: must be {what}{did_you_mean(name, names)}")
        return self


def overlay_names() -> list[str]:
    """The names of the files that come with growctl."""
    return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


@cache
def load_overlay(name: str) -> Published:
    """The published figures called `name`, or in the file of that path, with costs that count from the first model on.

    Raises UserError if there are none.
    """
    names = overlay_names()
    path = _FOLDER / f"{name}.yaml" if name in names else Path(name)
    if not path.is_file():
        near = nearest(path.stem, names)
        raise UserError(f"--overlay {name}: is neither a file nor one of {', '.join(names)}; {near}")
    try:
        file = Published.model_validate(read_yaml(path))
    except ValidationError as error:
        raise UserError(f"{path}: {several(describe(error, Published))}") from error
    except (UserError, OSError) as error:
        raise UserError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    models: dict[str, PublishedModel] = {}
    for row in file.rows:
        models[row.model] = _from_the_first(row, file, models.get(row.grown_from or ""))
    return file.model_copy(update={"rows": [*models.values()]})


def _from_the_first(row: PublishedModel, file: Published, before: PublishedModel | None) -> PublishedModel:
    costs, computed = row.costs, False
    if row.flops is None and row.shape and row.tokens and file.context:
        costs["flops"] = row.tokens * training_flops_per_token(file.shapes[row.shape].config(), file.context).total
        computed = True
    if before:
        computed |= before.flops_computed
        costs = {key: value + before.costs[key] for key, value in costs.items() if key in before.costs}
    update = {key: costs.get(key) for key in _COSTS} | {"data": row.data or file.data, "flops_computed": computed}
    return row.model_copy(update=update)


_COMPUTED = "computed by growctl from the shape and the tokens"
_NOTE = (
    "Published by others: growctl did not measure these figures, on other data and with other tokenizers than the runs "
    "above. They are a scale. No comparison, headline or verdict uses them."
)


def _by_series(overlay: Published) -> dict[str, list[PublishedModel]]:
    names = dict.fromkeys(model.series for model in overlay.rows)
    return {name: [model for model in overlay.rows if model.series == name] for name in names}


def published_series(overlay: Published) -> tuple[Series, ...]:
    """The models that have a perplexity and a cost, by series; a growth starts at its base."""
    drawn = []
    for name, models in _by_series(overlay).items():
        models = [model for model in overlay.rows if model.model == models[0].grown_from] + models
        costly = [model for model in models if model.costs]
        if marks := tuple(Mark(each.costs, each.perplexity, is_end=True) for each in costly if each.perplexity):
            drawn.append(Series(f"{name} (published)", marks, "published", f"published: {overlay.title}"))
    return tuple(drawn)


_UNKNOWN = "Neither the FLOPs nor the shape and the tokens were published."
_COLUMNS = (
    Column("model", False, cell=lambda row: Cell(row.model)),
    Column("tokens", drop=1, cell=lambda row: figure(row.tokens, short_count, "Not published.")),
    Column("FLOPs so far", cell=lambda row: figure(row.flops, scientific, _UNKNOWN)),
    Column("perplexity", cell=lambda row: figure(row.perplexity, "{:.4g}", "Not published.")),
)


def section(overlays: Sequence[Published]) -> Section | None:
    """The published figures as tables; None without any."""
    parts: list[Part] = [Paragraph(_NOTE, "note")]
    for number, overlay in enumerate(overlays, 1):
        by_series = _by_series(overlay).items()
        groups = [Rows(rows_of(_COLUMNS, models), name, "published") for name, models in by_series]
        caption = f"FLOPs are {_COMPUTED}." if any(model.flops_computed for model in overlay.rows) else ""
        parts += [
            Paragraph(f"{overlay.title} (published)", "heading"),
            Paragraph(f"Source: {overlay.source}."),
            Table(f"published-{number}", _COLUMNS, tuple(groups), caption),
            *(Paragraph(note, "note") for note in overlay.notes),
        ]
    return Section("published", "Published figures", tuple(parts)) if overlays else None
