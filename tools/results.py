"""Makes the tables of docs/ that show benchmarks/results/, each against its goal."""

import json
from collections.abc import Callable
from typing import Any

from stages.counted import counted
from tools import trained
from tools.tables import NOT_MEASURED, REPOSITORY, Rows, held, judged, number, table

RESULTS = REPOSITORY / "benchmarks/results"

PATTENTIONS = ((768, 576), (768, 8560), (64, 16), (64, 256))
"""The widths and numbers of tokens to show: the least and the most of the paper's models and of the quickstart's."""

FLOOR_GOALS = {"fp32": 1.10, "bf16": 1.15}
"""The largest allowed ratio of the layer's time to the floor, by dtype."""

TRAINER_GOAL = 0.95
"""The smallest allowed ratio of the trainer's tokens per second to the bare loop's."""

FAMILY_GOAL, GOAL_CONTEXT = 0.95, 1024
"""The smallest allowed ratio of a Tokenformer's tokens per second to an equal Transformer's, and at which context."""

CACHE_GOAL = 1.0
"""The smallest allowed ratio of the tokens per second with a KV cache to those without."""

COVERAGE_GOAL, WIDTH_GOAL, BIAS_GOAL, FALSE_GOAL = 0.93, 1.5, 0.02, 0.05

START_UP = {
    "python": ("an interpreter that does nothing", None),
    "help": ("`growctl --help`", 0.4),
    "plan": ("`growctl plan quickstart`", None),
    "first_step": ("`growctl run quickstart`, to the first step", 12.0),
}
"""What each time in seconds is, and the largest allowed one."""

READERS = {
    "memmap": "a bare loop over a `numpy.memmap`",
    "training": "a dataset, in order / the bare loop",
    "mixture": "a mixture of four datasets, in order / a dataset",
    "packed": "a dataset with packed documents, in order / a dataset",
    "megatron": "a Megatron file of uint16, in order / a dataset",
    "training_at_random": "a dataset, at random / the bare loop",
}
"""What benchmarks/data.py reads / the reference of its time."""


def results_table(name: str) -> str:
    """The table `name` of TABLES, below the machine, versions, date and note of its measurement."""
    file, rows = TABLES[name]
    path = RESULTS / f"{file}.json"
    if not path.exists():
        return NOT_MEASURED
    found = json.loads(path.read_text())
    shown = table(rows(found))
    if name == "judge-verdicts" or name in trained.TABLES:  # the text around them says where
        return shown
    machine = found["machine"]
    parts = (
        f"{machine['cpu']}, {machine['cores']} cores",
        f"torch {machine['torch']}",
        found["date"],
        found.get("note"),
    )
    return f"{'; '.join(part.rstrip('.') for part in parts if part)}.\n\n{shown}"


def _pattention(found: Any) -> Rows:
    sizes: dict[tuple[int, int], dict[str, Any]] = {}
    for row in found["rows"]:
        sizes.setdefault((row["width"], row["num_tokens"]), {})[row["dtype"]] = row
    for (width, num_tokens), by_dtype in [size for size in sizes.items() if size[0] in PATTENTIONS]:
        cells = {"width, n": f"{width}, {num_tokens:,}"}
        for dtype, goal in FLOOR_GOALS.items():
            over, quartiles = by_dtype[dtype]["over_floor"], by_dtype[dtype]["over_floor_quartiles"]["ours"]
            cells[f"{dtype}: ours (goal: {goal:.2f})"] = held(over["ours"], most=goal, quartiles=quartiles)
            cells[f"{dtype}: written out; compiled"] = f"{over['written_out']:.2f}; {over['compiled']:.2f}"
        yield cells


def _train_step(found: Any) -> Rows:
    family, trainer = "tokenformer_over_transformer", "trainer_over_bare"
    for row in found["rows"]:
        ratios, quartiles, context = row["ratios"], row["quartiles"], row["sequence_length"]
        family_goal = FAMILY_GOAL if context == GOAL_CONTEXT else None
        yield {
            "layers x width, context, precision": (
                f"{row['num_layers']} x {row['hidden_size']}, {context:,}, {row['precision']}"
            ),
            "tokens/s": f"{row['tokens_per_second']['trainer']:,.0f}",
            f"trainer / bare loop (goal: {TRAINER_GOAL})": held(
                ratios[trainer], least=TRAINER_GOAL, quartiles=quartiles[trainer]
            ),
            f"Tokenformer / Transformer (goal: {FAMILY_GOAL} at {GOAL_CONTEXT:,})": held(
                ratios[family], least=family_goal, quartiles=quartiles[family]
            ),
        }


def _recomputation(found: Any) -> Rows:
    by_setting: dict[int, dict[str, str]] = {}
    for row in found["rows"]:
        shares = [f"{row[key]['with'] / row[key]['without']:.2f}" for key in ("peak_bytes", "planned_bytes")]
        cells = by_setting.setdefault(row["every"], {"recomputed at a time": counted(row["every"], "block")})
        cells[f"{row['case']} (by `plan`)"] = "{} ({})".format(*shares)
    yield from by_setting.values()


def _start_up(found: Any) -> Rows:
    for name, (shown, goal) in START_UP.items():
        seconds = found["median_seconds"][name]
        compared = held(seconds, most=goal, digits=3 if goal < 1 else 1) if goal else number(seconds)
        yield {"": shown, "seconds, median": compared, "goal": f"{goal:g}" if goal else "-"}


def _generate(found: Any) -> Rows:
    for row in found["rows"]:
        yield {
            "model": row["case"],
            "prompt + new tokens": f"{row['prompt_tokens']} + {row['new_tokens']}",
            "tokens/s": number(row["tokens_per_second"]),
            f"with / without, range (goal: {CACHE_GOAL:g})": held(
                row["ratio"], least=CACHE_GOAL, quartiles=row["ratio_range"]
            ),
        }


def _data(found: Any) -> Rows:
    goals, millions = found["goals"], found["goal_tokens_per_second"] / 1e6
    for reader, shown in READERS.items():
        names = [f"{reader}_over_{other}" for other in ("memmap", "training", "training_at_random")]
        name = next(filter(found["ratios"].get, names), None)
        ratio = held(found["ratios"][name], quartiles=found["quartiles"][name], most=goals.get(name)) if name else "-"
        speed = held(
            found["tokens_per_second"][reader] / 1e6, least=millions if reader == "training" else None, digits=0
        )
        yield {"": shown, "million tokens/s": speed, "time / reference": ratio}


def _judge_coverage(found: Any) -> Rows:
    """A row for each kind of noise, with the figures of two, three and five seeds in each cell."""
    by_noise: dict[str, list[Any]] = {}
    for row in found["coverage"]:
        budgets = len(row["budgets"][0])
        by_noise.setdefault(row["noise"] + ("" if budgets == 3 else f"; {budgets} budgets"), []).append(row)
    for noise, rows in by_noise.items():
        two = len(rows[0]["budgets"][0]) == 2
        yield {
            "noise between seeds": noise,
            f"coverage, lowest (goal: {COVERAGE_GOAL:.0%})": ", ".join(
                judged(f"{row['coverage']:.1%}", row["coverage"] >= COVERAGE_GOAL) for row in rows
            ),
            f"width / oracle's, largest (goal: {WIDTH_GOAL})": ", ".join(
                held(row["width_to_oracle"], most=None if two else WIDTH_GOAL) for row in rows
            ),
            f"estimate / truth, furthest (goal: within {BIAS_GOAL:.0%})": ", ".join(
                judged(f"{row['bias']:.{2 if two else 3}f}", two or abs(row["bias"] - 1) <= BIAS_GOAL) for row in rows
            ),
        }


def _judge_verdicts(found: Any) -> Rows:
    """How often a verdict is false, under the kind of noise under which it is false most often."""
    groups: dict[tuple[int, int], dict[int, list[Any]]] = {}
    for row in found["verdicts"]:
        groups.setdefault((row["sizes"], row["policies"]), {}).setdefault(row["seeds"], []).append(row)
    for (sizes, policies), by_seeds in groups.items():
        yield {"best of": f"{counted(sizes, 'size')}, {counted(policies, 'policy', 'policies')}"} | {
            f"{name.replace('_', ' ')} (goal: {FALSE_GOAL})": ", ".join(
                held(max(row[name] for row in rows), most=FALSE_GOAL, digits=3) for rows in by_seeds.values()
            )
            for name in ("false_won", "false_lost")
        }


TABLES: dict[str, tuple[str, Callable[[Any], Rows]]] = {
    "pattention": ("pattention", _pattention),
    "train-step": ("train_step", _train_step),
    "recomputation": ("recomputation", _recomputation),
    "start-up": ("start_up", _start_up),
    "generate": ("generate", _generate),
    "data": ("data", _data),
    "judge-coverage": ("judge_coverage", _judge_coverage),
    "judge-verdicts": ("judge_coverage", _judge_verdicts),
    **trained.TABLES,
}
"""The results file and the rows of every table, by the name of its marks."""
