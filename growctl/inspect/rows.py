"""The tables of an inspection as text. Models are numbered in their order."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from growctl.inspect.inspection import Inspection, Subject
from growctl.text.formatting import short_count
from model.config import PATTENTIONS
from stages.inspect.facts import DEAD_BELOW, Layer, Scores

MOST_COLUMNS = 8
"""Models side by side in one table."""


class Grid(NamedTuple):
    """One table."""

    title: str
    headings: tuple[str, ...]
    """A line feed in a heading is a good place to break it."""

    rows: Sequence[tuple[str, ...]]


NOTES = (
    "Only compare like with like. Weights trained under one score function mean nothing under another, so no "
    "checkpoint is run under a score function that it was not trained with.",
    "Checkpoints may be compared with each other if they ran the same schedule but for the score function.",
)


def model_rows(inspection: Inspection) -> Grid:
    """One row per model."""
    rows = []
    for number, subject in enumerate(inspection.subjects, 1):
        facts = subject.facts
        kurtosis = [layer.output.kurtosis for layer in facts.layers if layer.output.kurtosis is not None]
        rows.append(
            (
                *(str(number), subject.name, subject.scores, short_count(facts.num_parameters), f"{facts.loss:.3f}"),
                *(_number(facts.gradient.mean), _percent(facts.gradient.spread), _number(facts.depth_ratio)),
                _number(max(kurtosis, default=None)),
            )
        )
    headings = ("", "model", "scores", "size", "loss", "gradient\nnorm", "spread", "depth\nratio", "kurto-\nsis")
    return Grid("models on this text", headings, rows)


QUANTITIES: dict[str, Callable[[Layer], float | None]] = {
    "gradient norm": lambda layer: layer.gradient.mean,
    "spread of the gradient norm over batches": lambda layer: layer.gradient.spread,
    "gradient gain (norm at the input / norm at the output)": lambda layer: layer.gradient_gain,
    "RMS of the output": lambda layer: layer.output.rms,
    "kurtosis of the output": lambda layer: layer.output.kurtosis,
}


def comparison_rows(inspection: Inspection) -> Iterator[Grid]:
    """Every quantity by kind of layer, averaged over the blocks, the models side by side."""
    numbered = list(enumerate(inspection.subjects, 1))
    for first in range(0, len(numbered), MOST_COLUMNS):
        some = numbered[first : first + MOST_COLUMNS]
        headings = ("layer", *(f"{number}\n{_short(subject)}" for number, subject in some))
        for title, quantity in QUANTITIES.items():
            rows = [(name, *(_number(_mean(subject, name, quantity)) for _, subject in some)) for name in PATTENTIONS]
            yield Grid(title, headings, rows)


def layer_rows(number: int, subject: Subject) -> Grid:
    """Gradients and activations of every layer of one model."""
    headings = ("block", "layer", "gradient\nnorm", "spread", "gain", "output\nRMS", "largest", "kurtosis")
    rows = [
        (
            *(str(layer.block), layer.name, _number(layer.gradient.mean), _percent(layer.gradient.spread)),
            *(_number(layer.gradient_gain), _number(layer.output.rms), _number(layer.output.largest)),
            _number(layer.output.kurtosis),
        )
        for layer in subject.facts.layers
    ]
    return Grid(f"{number}: {subject.name}, every layer", headings, rows)


def score_rows(number: int, subject: Subject) -> Grid | None:
    """The scores of every layer of one model; None for a Transformer."""
    found = [(layer, layer.scores) for layer in subject.facts.layers if layer.scores]
    if not found:
        return None
    thresholds = [f"|s| <\n{limit}" for limit in found[0][1].below]
    rows = [
        (
            *(str(layer.block), layer.name, str(scores.num_tokens)),
            *(_percent(share) for share in scores.below.values()),
            *(f"{scores.effective_tokens:.1f}", _percent(scores.effective_tokens / scores.num_tokens)),
            *(str(_num_dead(scores)), _number(scores.most_used[0].relative)),
        )
        for layer, scores in found
    ]
    headings = ("block", "layer", "tokens", *thresholds, "effec-\ntive", "of all", "dead", "most\nused")
    return Grid(f"{number}: {subject.name}, scores", headings, rows)


def generation_rows(number: int, subject: Subject) -> Grid | None:
    """The use of each generation, over all layers; None for a Transformer."""
    totals: dict[int, list[float]] = {}
    num_layers = len(subject.facts.layers)
    for layer in subject.facts.layers:
        scores = layer.scores
        if scores is None:
            return None
        for generation in scores.generations:
            total = totals.setdefault(generation.generation, [0, 0.0, 0.0, 0.0, 0, 1.0])
            more = (
                *(generation.num_tokens, generation.num_tokens / scores.num_tokens / num_layers),
                *(generation.score_mass / num_layers, generation.contribution / num_layers, len(generation.dead)),
            )
            total[:5] = [a + b for a, b in zip(total, more, strict=False)]
            total[5] = min(total[5], generation.key_ramp)
    rows = [
        (
            *(str(generation), str(tokens), _percent(even), _percent(mass), _percent(contribution), str(dead)),
            f"{ramp:g}",
        )
        for generation, (tokens, even, mass, contribution, dead, ramp) in sorted(totals.items())
    ]
    headings = ("generation", "tokens", "share of\ntokens", "score\nmass", "contri-\nbution", "dead", "key\nramp")
    return Grid(f"{number}: {subject.name}, use by generation (mean over layers)", headings, rows)


def dead_lines(subject: Subject) -> list[str]:
    """The dead parameter tokens by layer and generation, and what makes a token dead."""
    lines = [
        f"block {layer.block} {layer.name}, generation {generation.generation}: {ranges(generation.dead)}"
        for layer in subject.facts.layers
        for generation in generations_of(layer)
        if generation.dead
    ]
    count = subject.facts.num_dead
    what = f"contribution below {DEAD_BELOW:.0%} of the layer's output on the whole text"
    return [f"{count} dead parameter tokens ({what})" if count else f"no dead parameter tokens ({what})", *lines]


def use_lines(subject: Subject, most: int | None = None) -> Iterator[tuple[str, list[tuple[str, str, float]]]]:
    """(a parameter token, its contexts as (text before, data token, score)), the most used relative to its layer's
    even share first."""
    uses = [(layer, use) for layer in subject.facts.layers if layer.scores for use in layer.scores.most_used]
    uses.sort(key=lambda pair: -pair[1].relative)
    for layer, use in uses[:most]:
        head = (
            f"block {layer.block} {layer.name}, generation {use.generation}, token {use.token}: "
            f"{use.relative:.1f} x its even share, largest |score| {_number(use.largest_score)}"
        )
        yield head, [(one_line(context.before), one_line(context.at), context.score) for context in use.contexts]


def one_line(text: str) -> str:
    """`text` with its line feeds and tabs as signs."""
    return text.replace("\r", "").replace("\n", "\u21b5").replace("\t", "\u2192")


def ranges(numbers: Sequence[int]) -> str:
    """(1, 2, 3, 7) -> '1-3, 7'."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    return ", ".join("-".join(map(str, part)) for part in parts)


def _num_dead(scores: Scores) -> int:
    return sum(len(generation.dead) for generation in scores.generations)


def _mean(subject: Subject, name: str, quantity: Callable[[Layer], float | None]) -> float | None:
    found = [value for layer in subject.facts.layers if layer.name == name and (value := quantity(layer)) is not None]
    return sum(found) / len(found) if found else None


def _short(subject: Subject) -> str:
    return {"l2_norm_gelu": "l2-gelu", "gelu_l2_norm": "gelu-l2"}.get(subject.scores, subject.scores)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"
