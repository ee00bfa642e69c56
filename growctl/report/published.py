"""Published figures, to be drawn beside measured ones. No comparison, headline or verdict reads them."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, PositiveInt, ValidationError

from growctl.report.chart import Mark, Series
from growctl.schedule.errors import describe, several
from growctl.text.formatting import exact, scientific, short_count
from growctl.text.section import Cell, Column, Paragraph, Part, Rows, Section, Table, figure
from growctl.text.suggestion import did_you_mean, nearest
from model.config import TokenformerConfig, TransformerConfig, tokenformer_config
from model.errors import UserError
from model.flops import training_flops_per_token
from model.strict import Strict
from stages.plain_yaml import read_yaml

_FOLDER = Path(__file__).with_name("published_figures")
_KIND = "file of published figures"

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Text = Annotated[str, Field(min_length=1)]


class Shape(Strict):
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
        costs = {"flops": self.flops, "device_hours": self.device_hours, "money": self.money}
        return {key: cost for key, cost in costs.items() if cost is not None}


class Published(Strict):
    """Figures that others published and growctl did not measure."""

    title: Text
    source: Text
    """The publication, with the number or name of the table or figure."""
    data: Text
    rows: Annotated[list[PublishedModel], Field(min_length=1)]
    context: PositiveInt | None = None
    shapes: dict[str, Shape] = {}
    notes: list[Text] = []


def overlay_names() -> list[str]:
    """The names of the files that come with growctl."""
    return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


def load_overlay(name: str) -> Published:
    """The published figures called `name`, or in the file of that path. Raises UserError if there are none."""
    path, names = Path(name), overlay_names()
    if path.is_file():
        return _load(path)
    if name not in names:
        near = nearest(path.stem, names)
        raise UserError(f"--overlay {name}: is neither a file nor one of {', '.join(names)}; {near}")
    return shipped(name)


@cache
def shipped(name: str) -> Published:
    """The published figures of that name, which come with growctl."""
    return _load(_FOLDER / f"{name}.yaml")


def _load(path: Path) -> Published:
    try:
        data = read_yaml(path)
    except (UserError, OSError) as error:
        raise UserError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    if not isinstance(data, dict):
        raise UserError(
            f"{path}: has no published figures; such a file has the keys {', '.join(Published.model_fields)}"
        )
    try:
        file = Published.model_validate(data)
    except ValidationError as error:
        raise UserError(f"{path}: {several(describe(error, Published))}") from error
    models: dict[str, PublishedModel] = {}
    for index, row in enumerate(file.rows):
        if row.model in models:
            raise UserError(f"{path}: rows.{index}.model = {row.model!r}: must differ from the models above")
        for key, names in (("grown_from", list(models)), ("shape", list(file.shapes))):
            if (value := getattr(row, key)) is not None and value not in names:
                what = "the model of a row above" if key == "grown_from" else "one of shapes"
                raise UserError(f"{path}: rows.{index}.{key} = {value!r}: must be {what}{did_you_mean(value, names)}")
        if row.shape and file.context is None:
            raise UserError(f"{path}: context: is missing; FLOPs follow from a shape and a context")
        models[row.model] = _from_the_first(row, file, models.get(row.grown_from or ""))
    return file.model_copy(update={"rows": list(models.values())})


def _from_the_first(row: PublishedModel, file: Published, before: PublishedModel | None) -> PublishedModel:
    """A row with costs that count from the first model on."""
    costs = row.costs
    computed = row.flops is None and bool(row.shape and row.tokens)
    if row.flops is None and row.shape and row.tokens and file.context:
        costs["flops"] = row.tokens * training_flops_per_token(file.shapes[row.shape].config(), file.context).total
    if before:
        computed |= before.flops_computed
        costs = {key: value + before.costs[key] for key, value in costs.items() if key in before.costs}
    every = {key: costs.get(key) for key in ("flops", "device_hours", "money")}
    return row.model_copy(
        update=every | {"data": row.data or file.data, "flops_computed": computed and "flops" in costs}
    )


_COMPUTED = "computed by growctl from the shape and the tokens"
_NOTE = (
    "Published by others: growctl did not measure these figures, on other data and with other tokenizers than the runs "
    "above. They are a scale. No comparison, headline or verdict uses them."
)


def published_series(overlay: Published) -> tuple[Series, ...]:
    """The models that have a perplexity and a cost, by series; a growth starts at its base."""
    found = []
    for name in dict.fromkeys(model.series for model in overlay.rows):
        models = [model for model in overlay.rows if model.series == name]
        models = [model for model in overlay.rows if model.model == models[0].grown_from] + models
        marks = tuple(_mark(overlay, model) for model in models if model.costs and model.perplexity)
        if marks:
            group = f"published: {overlay.title}"
            found.append(Series(f"{name} (published)", marks, role="published", group=group))
    return tuple(found)


def _mark(overlay: Published, model: PublishedModel) -> Mark:
    facts = [(model.model, "published, not measured by growctl"), ("perplexity", f"{model.perplexity:g}")]
    for key, cost in model.costs.items():
        how = f", {_COMPUTED}" if key == "flops" and model.flops_computed else ""
        facts.append((key.replace("flops", "FLOPs").replace("_", " "), f"{exact(cost)}{how}"))
    facts += [("data", model.data or ""), ("source", overlay.source)]
    return Mark(model.costs, model.perplexity or 0.0, tuple(facts), is_end=True)


def section(overlays: Sequence[Published]) -> Section | None:
    """The published figures as tables; None without any."""
    columns = (Column("model", is_number=False), Column("tokens", drop=1), Column("FLOPs so far"), Column("perplexity"))
    parts: list[Part] = [Paragraph(_NOTE, "note")]
    for number, overlay in enumerate(overlays, 1):
        parts += [Paragraph(f"{overlay.title} (published)", "heading"), Paragraph(f"Source: {overlay.source}.")]
        groups = [
            Rows(tuple(_row(model) for model in overlay.rows if model.series == name), name, "published")
            for name in dict.fromkeys(model.series for model in overlay.rows)
        ]
        computed = any(model.flops_computed for model in overlay.rows)
        parts.append(
            Table(f"published-{number}", columns, tuple(groups), f"FLOPs are {_COMPUTED}." if computed else "")
        )
        parts += [Paragraph(note, "note") for note in overlay.notes]
    return Section("published", "Published figures", tuple(parts)) if overlays else None


def _row(model: PublishedModel) -> tuple[Cell, ...]:
    unknown = "Neither the FLOPs nor the shape and the tokens were published."
    return (
        Cell(model.model),
        figure(model.tokens, short_count, "Not published."),
        figure(model.flops, scientific, unknown),
        figure(model.perplexity, "{:.4g}", "Not published."),
    )
