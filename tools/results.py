"""Makes the tables and the picture of docs/ that show benchmarks/results/, each against its goal."""

import json
from collections.abc import Callable
from typing import Any

from growctl.text.formatting import byte_count
from stages.counted import counted
from tools import trained
from tools.tables import NOT_MEASURED, REPOSITORY, Rows, held, judged, number, table

PICTURE = REPOSITORY / "docs/performance.png"
RESULTS = REPOSITORY / "benchmarks/results"

FLOOR_GOALS = {"fp32": 1.10, "bf16": 1.15}
"""The largest allowed ratio of the layer's time to the floor, by dtype."""

TRAINER_GOAL = 0.95
"""The smallest allowed ratio of the trainer's tokens per second to the bare loop's."""

FAMILY_GOAL, GOAL_CONTEXT = 0.95, 1024
"""The smallest allowed ratio of a Tokenformer's tokens per second to an equal Transformer's, and at which context."""

GROWTH_GOAL = 1.5
"""What a line or an event costs behind the most lines over what it costs behind the fewest, at most."""

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

HISTORY = {
    "read_seconds_per_line": "reading a line",
    "resume_seconds_per_line": "reading and booking a line",
    "event_seconds": "an event of a run: a hundred lines and a checkpoint",
}
READERS = {
    "memmap": "a bare loop over a `numpy.memmap`, at random starts",
    "training": "a dataset, in order",
    "mixture": "a mixture of four datasets, in order",
    "packed": "a dataset whose documents are packed, in order",
    "megatron": "an imported Megatron file of uint16, in order",
    "megatron_int32": "an imported Megatron file of int32, in order",
    "training_at_random": "a dataset, at random indices",
    "mixture_at_random": "the mixture, at random indices",
}
"""What benchmarks/data.py reads."""

FORMS = {"written_out": "written out", "ours": "ours", "compiled": "compiled"}


def results_table(name: str) -> str:
    """The table `name` of TABLES, below the machine, versions, date and note of its measurement."""
    file, rows = TABLES[name]
    path = RESULTS / f"{file}.json"
    if not path.exists():
        return NOT_MEASURED
    found = json.loads(path.read_text())
    shown = table(rows(found))
    if name in ("judge-verdicts", *trained.WITHOUT_MACHINE):  # the text around them says where
        return shown
    machine = found["machine"]
    cores = f", {machine['cores']} cores" if machine.get("cores") else ""
    parts = (f"{machine['cpu']}{cores}", f"torch {machine['torch']}, Python {machine['python']}", found["date"])
    where = "; ".join(part.rstrip(".") for part in (*parts, found.get("note")) if part) + ".\n"
    picture = f"\n![Time over the floor by size, for each form]({PICTURE.name})\n" if name == "pattention" else ""
    return f"{where}\n{shown}{picture}"


def _pattention(found: Any) -> Rows:
    goals = ", ".join(f"{goal:.2f} in {dtype}" for dtype, goal in FLOOR_GOALS.items())
    for row in found["rows"]:
        over, kept, dtype = row["over_floor"], row["saved_bytes"], row["dtype"]
        quartiles = row["over_floor_quartiles"]["ours"]
        yield {
            "data tokens x width, n, dtype": f"{row['tokens']:,} x {row['width']:,}, {row['num_tokens']:,}, {dtype}",
            "floor, ms": number(row["milliseconds"]["floor"]),
            "written out / floor": f"{over['written_out']:.2f}",
            f"ours / floor, quartiles (goal: at most {goals})": held(
                over["ours"], most=FLOOR_GOALS[dtype], digits=3, quartiles=quartiles
            ),
            "compiled / floor": f"{over['compiled']:.2f}",
            "kept for backward, ours (written out)": f"{byte_count(kept['ours'])} ({byte_count(kept['written_out'])})",
        }


def _train_step(found: Any) -> Rows:
    family = "tokenformer_over_transformer"
    for row in found["rows"]:
        speeds, ratios, quartiles = row["tokens_per_second"], row["ratios"], row["quartiles"]
        memory = {loop: byte_count(peak) for loop, peak in row["peak_bytes"].items()}
        family_goal = FAMILY_GOAL if row["sequence_length"] == GOAL_CONTEXT else None
        yield {
            "layers x width, context, precision": f"{_shape(row)}, {row['precision']}",
            "trainer, tokens/s": f"{speeds['trainer']:,.0f}",
            "bare loop, tokens/s": f"{speeds['bare']:,.0f}",
            f"trainer / bare, quartiles (goal: at least {TRAINER_GOAL})": held(
                ratios["trainer_over_bare"], least=TRAINER_GOAL, digits=3, quartiles=quartiles["trainer_over_bare"]
            ),
            f"Tokenformer / Transformer (goal: at least {FAMILY_GOAL} at {GOAL_CONTEXT:,})": held(
                ratios[family], least=family_goal, digits=3, quartiles=quartiles[family]
            ),
            "memory of the Tokenformer (the Transformer)": f"{memory['trainer']} ({memory['transformer']})",
        }


def _shape(row: Any) -> str:
    return f"{row['num_layers']} x {row['hidden_size']}, {row['sequence_length']:,}"


def _recomputation(found: Any) -> Rows:
    for row in found["rows"]:
        peak, planned, time = row["peak_bytes"], row["planned_bytes"], row["time_ratio"]
        yield {
            "model, layers x width, context": f"{row['case']}, {_shape(row)}",
            "recomputed at a time": counted(row["every"], "block"),
            "memory without": byte_count(peak["without"]),
            "memory with": byte_count(peak["with"]),
            "with / without": f"{peak['with'] / peak['without']:.2f}",
            "by `plan`": f"{planned['with'] / planned['without']:.2f}",
            "recomputed FLOPs": f"+{row['recomputed_flops']:.0%}",
            "time with / without, quartiles": "n/a" if time is None else held(time, quartiles=row["time_quartiles"]),
        }


def _start_up(found: Any) -> Rows:
    for name, (shown, goal) in START_UP.items():
        seconds = found["median_seconds"][name]
        compared = held(seconds, most=goal, digits=3 if goal < 1 else 1) if goal else number(seconds)
        yield {"": shown, "seconds, median": compared, "goal": f"at most {goal:g}" if goal else "-"}


def _history(found: Any) -> Rows:
    for name, shown in HISTORY.items():
        key, per_line = name.removesuffix("_per_line"), name.endswith("_per_line")
        times = {run["lines"]: run[key] / (run["lines"] if per_line else 1) for run in found["runs"]}
        yield {
            "": shown,
            **{f"{lines:,} lines": f"{seconds * 1e6:,.0f} µs" for lines, seconds in times.items()},
            f"growth (goal: at most {GROWTH_GOAL})": held(found["growth"][name], most=GROWTH_GOAL),
        }


def _generate(found: Any) -> Rows:
    for row in found["rows"]:
        yield {
            "model": row["case"],
            "prompt + new tokens": f"{row['prompt_tokens']} + {row['new_tokens']}",
            "tokens/s with the cache": number(row["tokens_per_second"]),
            "without": number(row["tokens_per_second_without_cache"]),
            f"with / without, range (goal: at least {CACHE_GOAL:g})": held(
                row["ratio"], least=CACHE_GOAL, quartiles=row["ratio_range"]
            ),
        }


def _data(found: Any) -> Rows:
    goals, goal_millions = found["goals"], found["goal_tokens_per_second"] / 1e6

    def over(*names: str) -> str:
        for name in filter(found["ratios"].get, names):
            return held(found["ratios"][name], quartiles=found["quartiles"][name], most=goals.get(name))
        return "-"

    bare, plain = (f"{goals[name]:g} in order" for name in ("training_over_memmap", "mixture_over_training"))
    for reader, shown in READERS.items():
        least = goal_millions if reader == "training" else None
        yield {
            "": shown,
            f"million tokens/s (goal: at least {goal_millions:g} in order)": held(
                found["tokens_per_second"][reader] / 1e6, least=least, digits=0
            ),
            f"time / the bare loop's, quartiles (goal: at most {bare})": over(f"{reader}_over_memmap"),
            f"time / a dataset's, quartiles (goal: at most {plain})": over(
                f"{reader}_over_training", f"{reader}_over_training_at_random"
            ),
        }


def _judge_coverage(found: Any) -> Rows:
    for row in found["coverage"]:
        num_budgets = len(row["budgets"][0])
        bias = f"at most {row['bias']:.2f}"
        if num_budgets > 2:
            bias = judged(f"{row['bias']:.3f}", abs(row["bias"] - 1) <= BIAS_GOAL)
        shares = {name: f"{100 * row[name]:.1f} %" for name in row if name.endswith("coverage")}
        yield {
            "noise between seeds": row["noise"] + ("" if num_budgets == 3 else f"; {num_budgets} budgets"),
            "seeds": str(row["seeds"]),
            f"coverage, lowest (goal: at least {100 * COVERAGE_GOAL:.0f} %)": judged(
                shares["coverage"], row["coverage"] >= COVERAGE_GOAL
            ),
            "mean": shares["mean_coverage"],
            f"width / oracle's, largest (goal: at most {WIDTH_GOAL})": held(
                row["width_to_oracle"], most=WIDTH_GOAL if num_budgets > 2 else None
            ),
            "width / that of an oracle that knows the noise": f"{row['width_to_knowing_oracle']:.2f}",
            f"estimate / truth, furthest (goal: within {100 * BIAS_GOAL:.0f} %)": bias,
            "coverage before, lowest": shares["old_coverage"],
            "mean before": shares["old_mean_coverage"],
        }


def _judge_verdicts(found: Any) -> Rows:
    """How often a verdict is false, under the kind of noise under which it is false most often."""
    groups: dict[tuple[int, int, int], list[Any]] = {}
    for row in found["verdicts"]:
        groups.setdefault((row["sizes"], row["policies"], row["seeds"]), []).append(row)
    for (sizes, policies, seeds), rows in groups.items():
        worst = {name: max(row[name] for row in rows) for name in rows[0] if "false" in name}
        yield {
            "best of": f"{counted(sizes, 'size')}, {counted(policies, 'policy', 'policies')}",
            "seeds": str(seeds),
            f"false won (goal: at most {FALSE_GOAL})": held(worst["false_won"], most=FALSE_GOAL, digits=3),
            f"false lost (goal: at most {FALSE_GOAL})": held(worst["false_lost"], most=FALSE_GOAL, digits=3),
            "false won before": f"{worst['old_false_won']:.3f}",
            "false lost before": f"{worst['old_false_lost']:.3f}",
        }


TABLES: dict[str, tuple[str, Callable[[Any], Rows]]] = {
    "pattention": ("pattention", _pattention),
    "train-step": ("train_step", _train_step),
    "recomputation": ("recomputation", _recomputation),
    "start-up": ("start_up", _start_up),
    "history": ("history", _history),
    "generate": ("generate", _generate),
    "data": ("data", _data),
    "judge-coverage": ("judge_coverage", _judge_coverage),
    "judge-verdicts": ("judge_coverage", _judge_verdicts),
    **trained.TABLES,
}
"""The results file and the rows of every table, by the name of its marks."""


def draw() -> None:
    """Draws PICTURE: a Pattention's time over the floor by size, with one panel per dtype."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    found = json.loads((RESULTS / "pattention.json").read_text())["rows"]
    dtypes = list(dict.fromkeys(row["dtype"] for row in found))
    figure, axes = pyplot.subplots(1, len(dtypes), figsize=(4.5 * len(dtypes), 3.6), sharey=True, squeeze=False)
    for axis, dtype in zip(axes[0], dtypes, strict=True):
        rows = [row for row in found if row["dtype"] == dtype]
        for form, label in FORMS.items():
            axis.plot(range(len(rows)), [row["over_floor"].get(form, float("nan")) for row in rows], "o", label=label)
        axis.axhline(1.0, color="black", linewidth=0.8, label="the floor")
        axis.axhline(FLOOR_GOALS[dtype], color="gray", linewidth=0.8, linestyle="--", label="the goal")
        axis.set_xticks(range(len(rows)), [f"{row['width']}, {row['num_tokens']}" for row in rows], rotation=45)
        axis.set_title(dtype, loc="left")
        axis.set_xlabel("width, parameter tokens")
    axes[0][0].set_ylabel("time over the floor")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="upper right", ncols=len(FORMS) + 2, frameon=False)
    figure.tight_layout(rect=(0, 0, 1, 0.94))
    figure.savefig(PICTURE, dpi=120, metadata={"Software": None})
    pyplot.close(figure)
