"""Charts as data: what they show, not how they look. The page and the figures for papers draw the same charts."""

from dataclasses import dataclass, field
from typing import Literal

from growctl.text.section import Drawn

Role = Literal["ladder", "control", "release", "published", "plain"]
"""What a series stands for. Roles are told apart by line and marker, groups by colour, so no one needs the colour."""


@dataclass(frozen=True)
class Axis:
    """An axis, or one of several that a reader can choose from."""

    key: str
    """Its name in `Mark.x`, such as `flops`."""
    label: str
    """What it measures, with the unit."""
    is_log: bool = False


@dataclass(frozen=True)
class Mark:
    """A measured point."""

    x: dict[str, float]
    """Its place on each x axis, by the axis's key. On an axis that it lacks, it is not drawn."""
    y: float
    facts: tuple[tuple[str, str], ...] = ()
    """Exact figures to show when a reader points at it: a name and a value each."""
    interval: tuple[float, float] | None = None
    """The 95 % interval of `y`."""
    is_end: bool = False
    """Whether it ends a stage or a run: drawn large. The others are measurements on the way."""


@dataclass(frozen=True)
class Series:
    """Marks that belong together, joined by a line if there is more than one."""

    name: str
    marks: tuple[Mark, ...]
    role: Role = "plain"
    group: str = ""
    """Series of one group share a colour: a ladder and its releases, the seeds of one schedule."""
    is_joined: bool = True
    label: str = ""
    """Its entry in the legend, which several series may share, such as the seeds of a schedule. Empty: its name."""
    is_guide: bool = False
    """Whether it only guides the eye through marks of other series, such as the budgets of a control: a thin dashed
    line without marks, nothing to point at."""

    @property
    def entry(self) -> str:
        """Its entry in the legend."""
        return self.label or self.name


@dataclass(frozen=True)
class Rule:
    """A line across the chart at one place of the x axis, such as a growth."""

    x: dict[str, float]
    label: str
    group: str = ""
    """The group whose colour it has."""


@dataclass(frozen=True)
class Chart(Drawn):
    """A chart. It says something with its series empty, too: `summary` is its text for readers who cannot see it."""

    key: str
    """Its name in file names and links, such as `compute-against-perplexity`."""
    title: str
    summary: str
    x_axes: tuple[Axis, ...]
    """The axes to choose from, the default first. At least one."""
    y_axis: Axis
    series: tuple[Series, ...]
    rules: tuple[Rule, ...] = field(default=())
    y_limit: float | None = None
    """Where the chart ends at the top, to cut off the start of training. None: where its marks end."""
    groups: tuple[str, ...] = ()
    """Groups in the order of their colours, so that a group has one colour in all charts of a page. Those not named
    here follow in the order in which they appear."""
