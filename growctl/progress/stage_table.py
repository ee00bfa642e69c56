"""The table of a run's stages, fitted into a terminal: the bar shrinks first, then columns go, then rows."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.console import Console, ConsoleOptions
from rich.table import Table
from rich.text import Text

from growctl.progress.facts import validation_words
from growctl.progress.ladder import LadderProgress
from growctl.progress.stage import StageProgress
from growctl.text.colours import BUSY, FAINT, GOOD
from growctl.text.formatting import duration, scientific, short_count
from growctl.text.name_cell import NameCell, broken

HEADINGS = (
    *("stage", "size", "progress", "steps", "training\nloss", "validation\nloss", "tokens/s", "FLOPs\nso far", "left"),
)
"""The columns in their order. The second line of a heading is below the first."""

DROPPED = ("tokens/s", "FLOPs\nso far", "size", "progress", "training\nloss", "validation\nloss", "steps")
"""The columns that a narrow terminal does not show, the first one to go first."""

GAP = 2
LEAST_BAR, MOST_BAR = 8, 40
MOST_NAME = 24
"""The widest column of names; longer names break at hyphens."""

_EARLIER, _LATER = "{} earlier", "{} later"


class Bar:
    """A bar that fills its cell; without colours too, the part that is done can be told from the rest."""

    def __init__(self, share: float, style: str) -> None:
        self._share = min(1.0, max(0.0, share))
        self._style = style

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        done, left = ("#", "-") if options.ascii_only else ("━", "─")
        length = int(self._share * options.max_width)
        yield Text.assemble((done * length, self._style), (left * (options.max_width - length), FAINT))


class Layout(NamedTuple):
    """The columns that fit, by heading, with their widths."""

    widths: dict[str, int]

    @classmethod
    def fitting(cls, cells: Sequence[dict[str, str]], room: int, least_name: int = 0) -> "Layout":
        """The layout of rows of cells, given as {heading: text}, in `room` characters."""
        widths = {
            heading: max(len(part) for part in (*heading.split("\n"), *(row[heading] for row in cells)))
            for heading in HEADINGS
            if heading not in ("stage", "progress")
        }
        names = [row["stage"] for row in cells]
        words = max(len(line) for name in names for line in broken(name, 1))
        widths["stage"] = max(least_name, len("stage"), min(max(map(len, names)), max(words, MOST_NAME)))
        widths["progress"] = LEAST_BAR
        for heading in DROPPED:
            if sum(widths.values()) + GAP * (len(widths) - 1) <= room:
                break
            del widths[heading]
        spare = room - sum(widths.values()) - GAP * (len(widths) - 1)
        if "progress" in widths:
            widths["progress"] = min(MOST_BAR, LEAST_BAR + spare)
        elif spare < 0:
            widths["stage"] = max(1, widths["stage"] + spare)
        return cls({heading: widths[heading] for heading in HEADINGS if heading in widths})

    def num_lines(self, name: str) -> int:
        """The lines that the row of the stage `name` takes."""
        return len(broken(name, self.widths["stage"]))


def stage_table(ladder: LadderProgress, room: int, num_lines: int | None = None) -> Table:
    """The stages of a run in `room` characters.

    With `num_lines`, the table takes no more lines than that, or as few as it can: then it shows the stages around the
    one that trains now, and counts the others.
    """
    stages = list(ladder.stages.values())
    cells = [_cells(ladder, stage) for stage in stages]
    layout = Layout.fitting(cells, room)
    headed = max(heading.count("\n") for heading in layout.widths) + 1
    first, last = _shown(stages, layout, None if num_lines is None else num_lines - headed)
    if last - first < len(stages):
        layout = Layout.fitting(cells, room, least_name=len(_EARLIER.format(len(stages))))
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for heading, width in layout.widths.items():
        left = heading in ("stage", "progress")
        table.add_column(
            heading, width=width, justify="left" if left else "right", no_wrap=heading != "stage", vertical="bottom"
        )
    if first:
        table.add_row(Text(_EARLIER.format(first), FAINT))
    for stage, row in list(zip(stages, cells, strict=True))[first:last]:
        share = stage.step / stage.num_steps if stage.num_steps else 1.0
        bar = Bar(share, GOOD if stage.state == "done" else BUSY)
        texts = {heading: Text(row[heading]) for heading in layout.widths}
        shown = texts | {"stage": NameCell(row["stage"])} | ({"progress": bar} if "progress" in texts else {})
        table.add_row(*shown.values(), style="bold" if stage.is_active else "")
    if last < len(stages):
        table.add_row(Text(_LATER.format(len(stages) - last), FAINT))
    return table


def _cells(ladder: LadderProgress, stage: StageProgress) -> dict[str, str]:
    """The texts of a stage's row, by heading."""
    left = stage.seconds_left if stage.state == "training" else None
    texts = (
        stage.plan.name,
        short_count(stage.plan.num_parameters),
        "",
        f"{stage.step}/{stage.num_steps}",
        "" if stage.loss is None else f"{stage.loss:.4f}",
        validation_words(stage),
        short_count(stage.tokens_per_second) if stage.tokens_per_second else "",
        scientific(ladder.flops_so_far(stage)) if stage.step else "",
        stage.state if left is None else duration(left),
    )
    return dict(zip(HEADINGS, texts, strict=True))


def _shown(stages: Sequence[StageProgress], layout: Layout, num_lines: int | None) -> tuple[int, int]:
    """The first stage to show and the one after the last: all, or those around the present one that fit."""
    heights = [layout.num_lines(stage.plan.name) for stage in stages]
    if num_lines is None or sum(heights) <= num_lines:
        return 0, len(stages)
    present = next((index for index, stage in enumerate(stages) if stage.state != "done"), len(stages) - 1)
    first, last = present, present + 1

    def lines(first: int, last: int) -> int:
        return sum(heights[first:last]) + (first > 0) + (last < len(stages))

    while True:  # one stage before, one after, as long as they fit
        grown = [(first - 1, last)] if first else []
        grown += [(first, last + 1)] if last < len(stages) else []
        grown.sort(key=lambda ends: abs(ends[0] + ends[1] - 1 - 2 * present))
        fitting = [ends for ends in grown if lines(*ends) <= num_lines]
        if not fitting:
            return first, last
        first, last = fitting[0]
