"""What `growctl inspect` prints: models are numbered in the user's order."""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from growctl.evaluate.inspection import InspectDocument, InspectedCheckpoint
from growctl.text.formatting import short_count
from growctl.text.section import Cell, Column, Listing, Paragraph, Part, Section, Table
from model.config import PATTENTIONS
from stages.counted import counted
from stages.inspect.facts import DEAD_BELOW, Layer

MOST_COLUMNS = 8
"""Models side by side in one table."""

MOST_USED_SHOWN = 5
BEFORE_SHOWN = 48
"""Characters of a context before the token."""

DEAD_SHOWN = 12
"""Lines of dead tokens; the JSON document has all."""

_QUANTITIES: dict[str, Callable[[Layer], float | None]] = {
    "gradient norm": lambda layer: layer.gradient.mean,
    "spread of the gradient norm over batches": lambda layer: layer.gradient.spread,
    "gradient gain (norm at the input / norm at the output)": lambda layer: layer.gradient_gain,
    "RMS of the output": lambda layer: layer.output.rms,
    "kurtosis of the output": lambda layer: layer.output.kurtosis,
}


def inspection_sections(document: InspectDocument) -> list[Section]:
    """The comparison of the models, then every layer, the scores and the tokens of each."""
    text = document.text
    batches = counted(text.num_sequences // text.batch_size, "batch", "batches")
    windows = f"{counted(text.num_sequences, 'window')} of {counted(text.context, 'token')}"
    size = Paragraph(f"{windows}, in {batches} of {text.batch_size}")
    notes = (Paragraph(note, "note") for note in document.notes)
    parts = (size, _models(document), *_comparisons(document), *notes)
    return [
        Section("models", f"Models on {text.source}", parts),
        *(
            Section(f"model-{number}", f"{number}: {model.name}", tuple(_model_parts(model)))
            for number, model in enumerate(document.models, 1)
        ),
    ]


def _table(key: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    columns = [Column(heading, heading not in ("model", "scores", "layer")) for heading in headings]
    return Table.of(key, columns, [list(map(Cell, row)) for row in rows])


def _models(document: InspectDocument) -> Table:
    rows = []
    for number, model in enumerate(document.models, 1):
        kurtosis = [layer.output.kurtosis for layer in model.layers if layer.output.kurtosis is not None]
        rows.append(
            (
                *(str(number), model.name, _scores_word(model), short_count(model.num_parameters)),
                *(f"{model.loss:.3f}", _number(model.gradient.mean), _percent(model.gradient.spread)),
                *(_number(model.depth_ratio), _number(max(kurtosis, default=None))),
            )
        )
    headings = ("", "model", "scores", "size", "loss", "gradient norm", "spread", "depth ratio", "kurtosis")
    return _table("models", headings, rows)


def _comparisons(document: InspectDocument) -> Iterator[Part]:
    """Every quantity by kind of layer, averaged over the blocks, the models side by side."""
    numbered = list(enumerate(document.models, 1)) if len(document.models) > 1 else []
    for first in range(0, len(numbered), MOST_COLUMNS):
        some = numbered[first : first + MOST_COLUMNS]
        headings = ("layer", *(f"{number} {_scores_word(model)}" for number, model in some))
        for title, quantity in _QUANTITIES.items():
            rows = [(name, *(_number(_mean(model, name, quantity)) for _, model in some)) for name in PATTENTIONS]
            yield Paragraph(title, "heading")
            yield _table("layers", headings, rows)


def _model_parts(model: InspectedCheckpoint) -> Iterator[Part]:
    yield Paragraph(f"{model.family}, every layer", "heading")
    headings = ("block", "layer", "gradient norm", "spread", "gain", "output RMS", "largest", "kurtosis")
    rows = [
        (
            *(str(layer.block), layer.name, _number(layer.gradient.mean), _percent(layer.gradient.spread)),
            *(_number(layer.gradient_gain), _number(layer.output.rms), _number(layer.output.largest)),
            _number(layer.output.kurtosis),
        )
        for layer in model.layers
    ]
    yield _table("layers", headings, rows)
    if not any(layer.scores for layer in model.layers):
        return
    yield Paragraph("Scores", "heading")
    yield _score_table(model)
    yield Paragraph("Use by generation (mean over layers)", "heading")
    yield _generation_table(model)
    lines = dead_lines(model)
    yield from map(Paragraph, lines[: DEAD_SHOWN + 1])
    if len(lines) > DEAD_SHOWN + 1:
        yield Paragraph(f"... and {len(lines) - DEAD_SHOWN - 1} lines more (--json has all)")
    yield from _most_used(model)


def _score_table(model: InspectedCheckpoint) -> Table:
    rows = []
    for layer in model.layers:
        if scores := layer.scores:
            below = [_percent(share) for share in scores.below.values()]
            used = (f"{scores.effective_tokens:.1f}", _percent(scores.effective_tokens / scores.num_tokens))
            most = _number(scores.most_used[0].relative)
            rows.append(
                (str(layer.block), layer.name, str(scores.num_tokens), *below, *used, str(scores.num_dead), most)
            )
            thresholds = [f"|s|< {limit}" for limit in scores.below]
    headings = ("block", "layer", "tokens", *thresholds, "effective", "of all", "dead", "most used")
    return _table("scores", headings, rows)


def _generation_table(model: InspectedCheckpoint) -> Table:
    uses = [(use, layer.scores) for layer in model.layers if layer.scores for use in layer.scores.generations]
    uses.sort(key=lambda pair: pair[0].generation)
    rows = []
    for generation, group in groupby(uses, key=lambda pair: pair[0].generation):
        pairs = list(group)
        even = sum(use.num_tokens / scores.num_tokens for use, scores in pairs)
        mass = sum(use.score_mass for use, _ in pairs)
        contribution = sum(use.contribution for use, _ in pairs)
        shares = (_percent(total / len(model.layers)) for total in (even, mass, contribution))
        dead = sum(len(use.dead) for use, _ in pairs)
        ramp = min(use.key_ramp for use, _ in pairs)
        rows.append((str(generation), str(sum(use.num_tokens for use, _ in pairs)), *shares, str(dead), f"{ramp:g}"))
    headings = ("generation", "tokens", "share of tokens", "score mass", "contribution", "dead", "key ramp")
    return _table("generations", headings, rows)


def dead_lines(model: InspectedCheckpoint) -> list[str]:
    """The dead parameter tokens by layer and generation, and what makes a token dead."""
    what = f"contribution below {DEAD_BELOW:.0%} of the layer's output on the whole text"
    return [
        f"{model.num_dead or 'no'} dead parameter tokens ({what})",
        *(
            f"block {layer.block} {layer.name}, generation {use.generation}: {ranges(use.dead)}"
            for layer in model.layers
            if layer.scores
            for use in layer.scores.generations
            if use.dead
        ),
    ]


def _most_used(model: InspectedCheckpoint) -> Iterator[Listing]:
    """Parameter tokens with their contexts, the most used relative to its layer's even share first."""
    uses = [(layer, use) for layer in model.layers if layer.scores for use in layer.scores.most_used]
    uses.sort(key=lambda pair: -pair[1].relative)
    for layer, use in uses[:MOST_USED_SHOWN]:
        lines = (
            f"{context.score:8.3g}  {_one_line(context.before)[-BEFORE_SHOWN:]}[{_one_line(context.at)[:12]}]"
            for context in use.contexts
        )
        label = (
            f"block {layer.block} {layer.name}, generation {use.generation}, token {use.token}: "
            f"{use.relative:.1f} x its even share, largest |score| {_number(use.largest_score)}"
        )
        yield Listing(label, "\n".join(lines))


def _one_line(text: str) -> str:
    """`text` with its line feeds and tabs as signs."""
    return text.replace("\r", "").replace("\n", "\u21b5").replace("\t", "\u2192")


def ranges(numbers: Sequence[int]) -> str:
    """(1, 2, 3, 7) -> '1-3, 7'."""
    runs = [[number for _, number in run] for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])]
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _mean(model: InspectedCheckpoint, name: str, quantity: Callable[[Layer], float | None]) -> float | None:
    layers = (quantity(layer) for layer in model.layers if layer.name == name)
    values = [value for value in layers if value is not None]
    return sum(values) / len(values) if values else None


def _scores_word(model: InspectedCheckpoint) -> str:
    return (model.score_function or "linear").replace("l2_norm", "l2").replace("_", "-")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"
