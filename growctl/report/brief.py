"""Which runs a terminal shows one by one: all of a few, else the ladders, else none."""

from collections.abc import Sequence

from growctl.analysis.runs import RunReport

MOST_RUNS = 6
"""Of three or four lines each, they fit one screen."""


def brief_runs(runs: Sequence[RunReport]) -> frozenset[str]:
    """The names of the runs whose rows the terminal shows without `--details`."""
    for some in (runs, [run for run in runs if run.control is None]):
        if len(some) <= MOST_RUNS:
            return frozenset(run.name for run in some)
    return frozenset()
