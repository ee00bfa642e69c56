"""What two runs cost and how good they are, side by side."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from growctl.analysis.data_groups import what_compares
from growctl.analysis.runs import RunReport
from growctl.text.formatting import four_digits, short_count
from growctl.verdicts.costs import CURRENCIES

OTHER_DATA = "Losses of different datasets cannot be compared."
OTHER_TEXT = "Losses on different text cannot be compared, nor bits per byte."


@dataclass(frozen=True)
class Figure:
    """One figure of runs A and B."""

    key: str
    name: str
    unit: str
    """Empty for counts."""
    a: float | None
    """None if it is not known."""
    b: float | None
    shown: Callable[[float], str]
    is_cost: bool = True
    """Whether a ratio says more than a difference, as for all but losses."""
    why_not: str = ""
    """Why the two must not be compared; empty if they may."""


def figures(a: RunReport, b: RunReport) -> tuple[Figure, ...]:
    """The figures of `a` and `b`, losses first. Those that neither of them has are left out."""
    return tuple(found for found in _all(a, b) if (found.a, found.b) != (None, None))


def _all(a: RunReport, b: RunReport) -> Iterator[Figure]:
    compared = what_compares(a, b)
    of_tokens = "" if compared == "loss" else OTHER_DATA
    of_bytes = OTHER_TEXT if compared == "nothing" else ""
    four_places = "{:.4f}".format
    shown = {"validation_loss": four_places, "perplexity": four_digits, "bits_per_byte": four_places}
    for name, unit, why_not in (
        ("validation_loss", "nats per token", of_tokens),
        ("perplexity", "", of_tokens),
        ("bits_per_byte", "", of_bytes),
    ):
        words = "final loss" if unit else name.replace("_", " ")
        yield Figure(name, words, unit, _end(a, name), _end(b, name), shown[name], False, why_not)
    for word, read in _COUNTS.items():
        yield Figure(word, word, "", read(a), read(b), short_count if word != "steps" else "{:,}".format)
    for currency in CURRENCIES:
        cost, other = currency.of_run(a), currency.of_run(b)
        if cost or other:
            yield Figure(currency.key, currency.name, currency.unit, cost, other, currency.shown)


_COUNTS: dict[str, Callable[[RunReport], int | None]] = {
    "parameters": lambda run: run.stages[-1].num_parameters if run.stages else None,
    "steps": lambda run: sum(stage.num_steps for stage in run.stages),
    "tokens": lambda run: sum(stage.train_tokens for stage in run.stages),
}


def _end(run: RunReport, name: str) -> float | None:
    """A figure of the model that a run ends with; None if it has no final loss."""
    return getattr(run.stages[-1], name) if run.final_loss is not None else None
