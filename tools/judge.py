"""Makes the tables of docs/judge.md from benchmarks/results/judge_coverage.json."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from pydantic import BaseModel

from tools.pages import REPOSITORY, filled
from tools.performance import RESULTS, Results, read_results
from tools.tables import NOT_MEASURED, at_most, share_at_least, table

PAGE = REPOSITORY / "docs/judge.md"

COVERAGE_GOAL, WIDTH_GOAL, BIAS_GOAL, FALSE_GOAL = 0.93, 1.5, 0.02, 0.05


class CoverageRow(BaseModel):
    """The worst of the cells with one kind of noise and one number of seeds."""

    curve: str
    budgets: list[list[float]]
    noise: str
    seeds: int
    cells: int
    mean_coverage: float
    coverage: float
    width_to_oracle: float
    width_to_knowing_oracle: float
    bias: float
    old_mean_coverage: float
    old_coverage: float


class VerdictRow(BaseModel):
    """How often a ladder that saves nothing is said to have won or lost."""

    sizes: int
    policies: int
    seeds: int
    noise: str
    false_won: float
    false_lost: float
    old_false_won: float
    old_false_lost: float


class JudgeCoverage(Results):
    """The results file of benchmarks/judge_coverage.py."""

    draws: int
    coverage: list[CoverageRow]
    verdicts: list[VerdictRow]


def coverage_table(results: Path) -> str:
    """How often the interval holds the true multiplier, how wide it is, and where the estimate lies."""
    found = read_results(results / "judge_coverage.json", JudgeCoverage)
    if found is None:
        return NOT_MEASURED
    headings = (
        *("noise between seeds", "seeds", f"coverage, lowest (goal: at least {COVERAGE_GOAL:.0%})", "mean"),
        *(f"width / oracle's, largest (goal: at most {WIDTH_GOAL})", "width / that of an oracle that knows the noise"),
        *(f"estimate / truth, furthest (goal: within {BIAS_GOAL:.0%})", "coverage before, lowest", "mean before"),
    )
    return (
        f"{found.where()}\n{table([heading.replace('%', ' %') for heading in headings], map(_cells, found.coverage))}"
    )


def _cells(row: CoverageRow) -> tuple[str, ...]:
    num_budgets = len(row.budgets[0])
    noise = row.noise if num_budgets == 3 else f"{row.noise}; {num_budgets} budgets"
    width, bias = f"{row.width_to_oracle:.2f}", f"at most {row.bias:.2f}"
    if num_budgets > 2:
        width = at_most(row.width_to_oracle, WIDTH_GOAL)
        bias = f"{row.bias:.3f}, met" if abs(row.bias - 1) <= BIAS_GOAL else f"**{row.bias:.3f}, not met**"
    return (
        *(noise, str(row.seeds), share_at_least(row.coverage, COVERAGE_GOAL), share_at_least(row.mean_coverage, None)),
        *(width, f"{row.width_to_knowing_oracle:.2f}", bias),
        *(share_at_least(row.old_coverage, None), share_at_least(row.old_mean_coverage, None)),
    )


def verdict_table(results: Path) -> str:
    """How often a verdict is false, under the kind of noise under which it is false most often."""
    found = read_results(results / "judge_coverage.json", JudgeCoverage)
    if found is None:
        return NOT_MEASURED
    goal = f"goal: at most {FALSE_GOAL}"
    headings = (
        "best of",
        "seeds",
        f"false won ({goal})",
        f"false lost ({goal})",
        "false won before",
        "false lost before",
    )
    groups: dict[tuple[int, int, int], list[VerdictRow]] = {}
    for row in found.verdicts:
        groups.setdefault((row.sizes, row.policies, row.seeds), []).append(row)
    return table(
        headings,
        (
            (
                *(f"{sizes} size{'s' * (sizes > 1)}, {policies} polic{'ies' if policies > 1 else 'y'}", str(seeds)),
                *(at_most(max(row.false_won for row in rows), FALSE_GOAL, digits=3),),
                *(at_most(max(row.false_lost for row in rows), FALSE_GOAL, digits=3),),
                *(f"{max(row.old_false_won for row in rows):.3f}", f"{max(row.old_false_lost for row in rows):.3f}"),
            )
            for (sizes, policies, seeds), rows in groups.items()
        ),
    )


def with_tables(page: str, results: Path = RESULTS) -> str:
    """`page` with the tables between its marks."""
    parts: dict[str, Callable[[], str]] = {
        "judge-coverage": partial(coverage_table, results),
        "judge-verdicts": partial(verdict_table, results),
    }
    return filled(page, parts)
