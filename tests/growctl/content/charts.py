"""Invented charts, for tests of what draws them."""

from growctl.content.chart import Axis, Chart, Mark, Role, Rule, Series

FLOPS = Axis("flops", "Cumulative training FLOPs", is_log=True)
HOURS = Axis("device_hours", "Device-hours")
MONEY = Axis("money", "Money (EUR)")
PERPLEXITY = Axis("perplexity", "Validation perplexity", is_log=True)


def mark(flops: float, perplexity: float, hours: float | None = None, is_end: bool = False) -> Mark:
    """A point with exact figures; without `hours`, it is missing on that axis."""
    x = {"flops": flops} | ({"device_hours": hours} if hours is not None else {})
    facts = (("Training FLOPs", f"{flops:.6e}"), ("Perplexity", f"{perplexity:.6f}"))
    return Mark(x, perplexity, facts, is_end=is_end)


def series(name: str, *marks: Mark, role: Role = "ladder", group: str = "") -> Series:
    """A series of these marks."""
    return Series(name, marks, role, group)


def chart(*of: Series, rules: tuple[Rule, ...] = ()) -> Chart:
    """A chart of these series, with three x axes to choose from."""
    return Chart("compute", "Compute against perplexity", "Falls.", (FLOPS, HOURS, MONEY), PERPLEXITY, of, rules)
