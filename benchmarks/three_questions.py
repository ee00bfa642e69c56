"""Answers the three questions of the README, with three seeds each, by the reports of the shipped schedules.

    python -m benchmarks.three_questions run --directory DIR --text TEXT [--seeds 0 1 2] [--only 'nothing*']
    python -m benchmarks.three_questions table --directory DIR    # results/three_questions.json

Runs of `nothing` train two at a time, each on a core of its own, so their wall-clock times can be compared. Those of
the others shared the cores with more, and are left out.

`nothing`, `family` and `trained` read the quickstart's text. `trained-20`, `-100` and `-500` grow models that have read
so many tokens a parameter of a text that no run repeats: files of Linux 6.1.192, from Debian's linux-source-6.1:

    tar xf linux-source-6.1.tar.xz --strip-components=1 --directory TEXT --wildcards \\
        linux-source-6.1/{fs,kernel,mm,drivers/net}/*.c linux-source-6.1/Documentation/*.rst
"""

import fnmatch
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import rows
from benchmarks.machine import machine

if TYPE_CHECKING:
    from growctl.analysis.results import Ladders

RESULTS = Path(__file__).resolve().parent / "results" / "three_questions.json"
BASES = {20: "2.3M", 100: "11.5M", 500: "57.4M"}
"""Data tokens of a trained model of 115k parameters, by tokens a parameter."""

QUESTIONS = {"nothing": "quickstart", "family": "quickstart_family", "trained": "quickstart_grow_on"}
QUESTIONS |= {f"trained-{tokens}": "quickstart_grow_on" for tokens in BASES}
"""The schedule that answers each question."""

CONTROLS = dict.fromkeys(
    (f"trained-{tokens}" for tokens in BASES),
    "[{kind: ungrown, budgets: [0.5, 1, 2]}, {kind: tokenformer-scratch, budgets: [1, 1.5, 2]}]",
)
"""The controls of each question where they are more than the schedule's."""
CONTROLS["nothing"] = "[{kind: best-scratch, budgets: [0.5, 1, 1.4], peaks: [0.5, 1, 2], depths: [2, 4]}]"
CONTROLS["trained"] = "[{kind: ungrown, budgets: [1, 2]}, {kind: tokenformer-scratch, budgets: [1, 1.25, 1.5]}]"

TIMED = ("nothing",)
"""Questions whose wall-clock times count."""


def other_text(text: str) -> list[str]:
    """The overrides of the quickstart's text."""
    return [f"data.source={text}", "data.validation_fraction=0.02", "data.approximate_tokens=null"]


def commands(question: str, seed: int, text: str) -> Iterator[tuple[str, list[str]]]:
    """The name, and the arguments of `growctl run`, of each ladder that a question needs with a seed, in order."""
    settings = [f"seed={seed}", "launch.devices=1", "launch.kernels=compiled"]
    trained, _, tokens = question.partition("-")
    if tokens:
        settings += other_text(text)
    if trained == "trained":
        base = f"{question.replace('trained', 'base')}-seed-{seed}"
        longer = [f"stages.0.train_tokens={BASES[int(tokens)]}", "evaluation.every=500"] if tokens else []
        yield base, ["quickstart_base", *settings, *longer]
        settings.append(f"start.run={base}")
    controls = [f"controls={CONTROLS[question]}"] if question in CONTROLS else []
    yield f"{question}-seed-{seed}", [QUESTIONS[question], *settings, *controls]


def run(question: str, seed: int, text: str, directory: Path) -> None:
    """Trains what a question needs with a seed; resumes it, or finds it done."""
    for name, arguments in commands(question, seed, text):
        if rows.growctl(directory, name, "run", *arguments, "--name", name, "--runs-dir", str(directory)):
            return


def answers(question: str, seeds: list[int], directory: Path) -> list[dict[str, Any]]:
    """What the report says of a question: a row for each opponent, the one that decides first, and for the family."""
    from growctl.analysis.judge import interval_text, multiplier_text
    from growctl.analysis.results import results
    from growctl.runs.find import RunNotFoundError, find_runs

    try:
        runs = find_runs(directory, [f"{question}-seed-{seed}" for seed in seeds])
    except RunNotFoundError:
        return []
    found = results(runs)
    made: list[dict[str, Any]] = []
    for verdict in (each for each in (*found.headlines, *found.verdicts) if each.opponent):
        times = verdict.multiplier
        wall = verdict.other_costs.get("wall_hours") if question in TIMED else None
        made.append(
            {
                "question": question,
                "opponent": verdict.opponent,
                "seeds": verdict.seeds,
                "outcome": verdict.outcome,
                "claim": verdict.claim,
                "flops": verdict.ladder_side and verdict.ladder_side.costs.get("flops"),
                "epochs": verdict.ladder_side and verdict.ladder_side.epochs,
                "saves": multiplier_text(times),
                "multiplier": times and times.estimate,
                "is_bound": bool(times and times.kind == "chord"),
                "low": times and times.low,
                "high": times and times.high,
                "saves_wall": multiplier_text(wall),
                "wall_multiplier": wall and wall.estimate,
                "wall_low": wall and wall.low,
                "wall_high": wall and wall.high,
                "loss_difference": times and times.loss_difference,
                "loss_interval": times and times.loss_interval,
                "cautions": verdict.cautions,
            }
        )
    for family in found.families:
        ends = interval_text(family.low, family.high)
        made.append(
            {
                "question": question,
                "opponent": "each size from scratch, added up",
                "seeds": sorted({seed for model in family.models for seed in model.seeds}),
                "outcome": family.outcome,
                "claim": family.claim,
                "flops": family.flops,
                "saves": f"{family.ratio_text} ({ends})" if family.ratio else ends,
                "low": family.low,
                "high": family.high,
                "price_ratio": family.ratio,
                "models": [{"name": each.ladder, "claim": each.claim} for each in family.models],
            }
        )
    return [row | {"losses": losses(found.ladders)} for row in made[:1]] + made[1:]


def losses(ladders: "Sequence[Ladders]") -> dict[str, dict[int, float]]:
    """Final losses, in nats, of the ladder and of each control, by seed."""
    return {arm.name: dict(arm.losses) for ladder in ladders for arm in ladder.arms}


def main() -> None:
    """Runs the command on the command line."""
    parser = rows.parser(__doc__)
    parser.add_argument("--text", default="", help="the folder of the text")
    arguments = parser.parse_args()
    directory = arguments.directory.resolve()
    if arguments.what == "run":
        chosen = [
            (question, seed) for seed in arguments.seeds for question in fnmatch.filter(QUESTIONS, arguments.only)
        ]
        with ThreadPoolExecutor(arguments.workers) as pool:
            list(pool.map(lambda job: run(job[0], job[1], arguments.text, directory), chosen))
    else:
        made = [row for question in QUESTIONS for row in answers(question, arguments.seeds, directory)]
        rows.write(RESULTS, {"date": f"{datetime.now(UTC):%Y-%m-%d}", "machine": machine("deepspeed"), "rows": made})


if __name__ == "__main__":
    main()
