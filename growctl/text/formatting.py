"""Formats numbers, durations and lines for people."""

import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stages.checkpoint.lineage import GrowthRecord


def short_count(value: float) -> str:
    """1310000000 -> '1.31B': three digits and a suffix."""
    for factor, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor * 0.9995:
            return f"{value / factor:.3g}{suffix}"
    return f"{value:.3g}" if value != int(value) else str(int(value))


def scientific(value: float) -> str:
    """1230000000000000 -> '1.23e15': three digits and an exponent, for FLOPs."""
    return f"{value:.2e}".replace("e+", "e") if value else "0"


def four_digits(value: float) -> str:
    """18.1 -> '18.10', 545 -> '545.0', 1234 -> '1234': for perplexities, which stand below each other in tables."""
    return f"{value:#.4g}".rstrip(".")


def jump_text(value: float) -> str:
    """0.00012 -> '+1.2e-04', 0 -> '0': for changes in loss."""
    return f"{value:+.1e}" if value else "0"


def byte_count(value: float) -> str:
    """80000000000 -> '80 GB': three digits and a decimal unit."""
    for factor, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(value) >= factor * 0.9995:
            return f"{value / factor:.3g} {unit}"
    return f"{value:.0f} B"


def duration(seconds: float) -> str:
    """133.4 -> '2m 13s': at most two units."""
    whole = max(0, round(seconds))
    for size, unit, below, below_unit in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            return f"{whole // size}{unit} {whole % size // below}{below_unit}"
    return f"{whole}s"


def wrapped(text: str, width: int) -> str:
    """`text` with its lines broken between words at `width` characters; a longer word, such as a path, stays whole.

    All parts of a line keep its indentation.
    """
    wrapper = textwrap.TextWrapper(
        width, expand_tabs=False, replace_whitespace=False, break_long_words=False, break_on_hyphens=False
    )
    lines = []
    for line in text.split("\n"):
        wrapper.subsequent_indent = line[: len(line) - len(line.lstrip())]
        lines += wrapper.wrap(line) or [""]
    return "\n".join(lines)


def growth_words(growth: "GrowthRecord") -> str:
    """How a checkpoint was grown, for example `init matched, tau ramp`; of a decoder, what grew.

    `depth` is a choice only where there are new layers.
    """
    if growth.policy is None:
        grown = {
            f"{growth.widen} times as wide": growth.widen > 1,
            f"{growth.ffn_tokens} FFN units": growth.ffn_tokens,
            f"{growth.heads} heads": growth.heads,
            f"depth {growth.depth}": growth.new_layers,
        }
        return ", ".join(words for words, has_grown in grown.items() if has_grown)
    policy = growth.policy
    words = [f"init {policy.init}", f"tau {policy.tau}"]
    words += [f"depth {policy.depth}"] if growth.new_layers else []
    words += [f"{policy.routing.read} of {policy.routing.groups} groups read"] if policy.routing else []
    return ", ".join(words)
