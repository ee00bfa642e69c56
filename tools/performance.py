"""Makes the tables and the picture of docs/performance.md from benchmarks/results/."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from growctl.text.formatting import byte_count
from stages.counted import counted
from tools.gpu_tables import gpu_tables
from tools.pages import REPOSITORY, filled
from tools.tables import NOT_MEASURED, at_least, at_most, number, ratio, table, with_quartiles

PAGE = REPOSITORY / "docs/performance.md"
PICTURE = REPOSITORY / "docs/performance.png"
RESULTS = REPOSITORY / "benchmarks/results"

FLOOR_GOALS = {"fp32": 1.10, "bf16": 1.15}
"""The largest allowed ratio of the layer's time to the floor, by dtype."""

TRAINER_GOAL = 0.95
"""The smallest allowed ratio of the trainer's tokens per second to the bare loop's."""

FAMILY_GOAL, GOAL_CONTEXT = 0.95, 1024
"""The smallest allowed ratio of a Tokenformer's tokens per second to an equal Transformer's, and at which context."""

START_UP_GOALS = {"help": 0.4, "first_step": 12.0}
"""The largest allowed times, in seconds."""

START_UP = {
    "python": "an interpreter that does nothing",
    "help": "`growctl --help`",
    "plan": "`growctl plan quickstart`",
    "first_step": "`growctl run quickstart`, to the first step",
}
GROWTH_GOAL = 1.5
"""What a line or an event costs behind the most lines over what it costs behind the fewest, at most."""

HISTORY = {
    "read_seconds_per_line": "reading a line",
    "resume_seconds_per_line": "reading and booking a line",
    "event_seconds": "an event of a run: a hundred lines and a checkpoint",
}
CACHE_GOAL = 1.0
"""The smallest allowed ratio of the tokens per second with a KV cache to those without."""

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


Document = TypeVar("Document", bound=BaseModel)


class Machine(BaseModel):
    """The machine of a measurement."""

    cpu: str
    cores: int | None = None
    torch: str
    python: str


class Results(BaseModel):
    """The fields that every results file has."""

    date: str
    note: str | None = None
    machine: Machine

    def where(self) -> str:
        """The line above a table: machine, versions, date and note."""
        machine = self.machine
        cores = f", {machine.cores} cores" if machine.cores else ""
        parts = [f"{machine.cpu}{cores}", f"torch {machine.torch}, Python {machine.python}", self.date, self.note]
        return "; ".join(part.rstrip(".") for part in parts if part) + ".\n"


class PattentionRow(BaseModel):
    """One size and dtype."""

    tokens: int
    width: int
    num_tokens: int
    dtype: str
    milliseconds: dict[str, float]
    over_floor: dict[str, float]
    over_floor_quartiles: dict[str, list[float]] = {}
    saved_bytes: dict[str, int] = {}


class Pattention(Results):
    """The results file of benchmarks/pattention.py."""

    rows: list[PattentionRow]


class TrainStepRow(BaseModel):
    """One case in one precision. The loops are `trainer`, `bare`, `transformer` and `compiled`."""

    case: str
    precision: str
    num_layers: int
    hidden_size: int
    sequence_length: int
    tokens_per_second: dict[str, float]
    ratios: dict[str, float]
    quartiles: dict[str, list[float]]
    peak_bytes: dict[str, int]


class TrainStep(Results):
    """The results file of benchmarks/train_step.py."""

    rows: list[TrainStepRow]


class RecomputationRow(BaseModel):
    """One model with activation checkpointing in segments of `every` blocks."""

    case: str
    num_layers: int
    hidden_size: int
    sequence_length: int
    every: int
    peak_bytes: dict[str, int]
    planned_bytes: dict[str, int]
    recomputed_flops: float
    time_ratio: float | None
    time_quartiles: list[float]


class Recomputation(Results):
    """The results file of benchmarks/recomputation.py."""

    rows: list[RecomputationRow]


class StartUp(Results):
    """The results file of benchmarks/start_up.py."""

    median_seconds: dict[str, float]


class HistoryRun(BaseModel):
    """One length of metrics.jsonl."""

    lines: int
    read_seconds: float
    resume_seconds: float
    event_seconds: float


class History(Results):
    """benchmarks/history.py's file."""

    growth: dict[str, float]
    runs: list[HistoryRun]


class GenerateRow(BaseModel):
    """One model."""

    case: str
    num_parameters: int
    generations: int
    prompt_tokens: int
    new_tokens: int
    tokens_per_second: float
    tokens_per_second_without_cache: float
    ratio: float
    ratio_range: list[float]


class Generate(Results):
    """The results file of benchmarks/generate.py."""

    rows: list[GenerateRow]


class Data(Results):
    """The results file of benchmarks/data.py."""

    tokens_per_second: dict[str, float]
    goal_tokens_per_second: float
    ratios: dict[str, float]
    quartiles: dict[str, list[float]]
    goals: dict[str, float]


def with_tables(page: str, results: Path = RESULTS) -> str:
    """`page` with every table between its marks made from the results files."""
    return filled(page, {name: partial(make, results) for name, make in TABLES.items()})


def pattention_table(results: Path) -> str:
    """The times of a Pattention's forms on a CPU, relative to the floor."""
    found = read_results(results / "pattention.json", Pattention)
    if found is None:
        return NOT_MEASURED
    goals = ", ".join(f"{goal:.2f} in {dtype}" for dtype, goal in FLOOR_GOALS.items())
    headings = (
        *("data tokens x width, n, dtype", "floor, ms", "written out / floor"),
        *(
            f"ours / floor, quartiles (goal: at most {goals})",
            "compiled / floor",
            "kept for backward, ours (written out)",
        ),
    )
    rows = []
    for row in found.rows:
        quartiles = row.over_floor_quartiles.get("ours", [])
        ours = at_most(row.over_floor["ours"], FLOOR_GOALS[row.dtype], digits=3, quartiles=quartiles)
        kept, theirs = row.saved_bytes.get("ours"), row.saved_bytes.get("written_out")
        rows.append(
            (
                f"{row.tokens:,} x {row.width:,}, {row.num_tokens:,}, {row.dtype}",
                number(row.milliseconds["floor"]),
                ratio(row.over_floor.get("written_out")),
                ours,
                ratio(row.over_floor.get("compiled")),
                f"{byte_count(kept)} ({byte_count(theirs)})" if kept is not None and theirs is not None else "n/a",
            )
        )
    picture = f"![Time over the floor by size, for each form]({PICTURE.name})"
    return f"{found.where()}\n{table(headings, rows)}\n{picture}\n"


def train_step_table(results: Path) -> str:
    """Tokens per second: the trainer against a bare loop, and a Tokenformer against an equal Transformer."""
    found = read_results(results / "train_step.json", TrainStep)
    if found is None:
        return NOT_MEASURED
    headings = (
        *("layers x width, context, precision", "trainer, tokens/s", "bare loop, tokens/s"),
        f"trainer / bare, quartiles (goal: at least {TRAINER_GOAL})",
        f"Tokenformer / Transformer (goal: at least {FAMILY_GOAL} at {GOAL_CONTEXT:,})",
        "memory of the Tokenformer (the Transformer)",
    )
    rows = []
    for row in found.rows:
        trainer, family = row.ratios["trainer_over_bare"], row.ratios["tokenformer_over_transformer"]
        quartiles = row.quartiles["tokenformer_over_transformer"]
        has_goal = row.sequence_length == GOAL_CONTEXT
        rows.append(
            (
                f"{row.num_layers} x {row.hidden_size}, {row.sequence_length:,}, {row.precision}",
                f"{row.tokens_per_second['trainer']:,.0f}",
                f"{row.tokens_per_second['bare']:,.0f}",
                at_least(trainer, TRAINER_GOAL, digits=3, quartiles=row.quartiles["trainer_over_bare"]),
                at_least(family, FAMILY_GOAL, 3, quartiles) if has_goal else with_quartiles(family, quartiles, 3),
                f"{byte_count(row.peak_bytes['trainer'])} ({byte_count(row.peak_bytes['transformer'])})",
            )
        )
    return f"{found.where()}\n{table(headings, rows)}"


def recomputation_table(results: Path) -> str:
    """Memory, FLOPs and time with activation checkpointing, relative to training without."""
    found = read_results(results / "recomputation.json", Recomputation)
    if found is None:
        return NOT_MEASURED
    headings = (
        *("model, layers x width, context", "recomputed at a time", "memory without", "memory with"),
        *("with / without", "by `plan`", "recomputed FLOPs", "time with / without, quartiles"),
    )
    rows = [
        (
            f"{row.case}, {row.num_layers} x {row.hidden_size}, {row.sequence_length:,}",
            counted(row.every, "block"),
            byte_count(row.peak_bytes["without"]),
            byte_count(row.peak_bytes["with"]),
            f"{row.peak_bytes['with'] / row.peak_bytes['without']:.2f}",
            f"{row.planned_bytes['with'] / row.planned_bytes['without']:.2f}",
            f"+{row.recomputed_flops:.0%}",
            "n/a" if row.time_ratio is None else with_quartiles(row.time_ratio, row.time_quartiles, 2),
        )
        for row in found.rows
    ]
    return f"{found.where()}\n{table(headings, rows)}"


def start_up_table(results: Path) -> str:
    """Seconds until growctl prints help or a plan, or trains its first step."""
    found = read_results(results / "start_up.json", StartUp)
    if found is None:
        return NOT_MEASURED
    rows = []
    for name, shown in START_UP.items():
        goal, seconds = START_UP_GOALS.get(name), found.median_seconds[name]
        judged = number(seconds, 3) if goal is None else at_most(seconds, goal, 3 if goal < 1 else 1)
        rows.append((shown, judged, "-" if goal is None else f"at most {goal:g}"))
    return f"{found.where()}\n{table(('', 'seconds, median', 'goal'), rows)}"


def history_table(results: Path) -> str:
    """What following a stage costs, by how much its workers have said."""
    found = read_results(results / "history.json", History)
    if found is None:
        return NOT_MEASURED
    headings = ("", *(f"{run.lines:,} lines" for run in found.runs), f"growth (goal: at most {GROWTH_GOAL})")
    seconds = {
        "read_seconds_per_line": [run.read_seconds / run.lines for run in found.runs],
        "resume_seconds_per_line": [run.resume_seconds / run.lines for run in found.runs],
        "event_seconds": [run.event_seconds for run in found.runs],
    }
    rows = [
        (shown, *(f"{value * 1e6:,.0f} µs" for value in seconds[name]), at_most(found.growth[name], GROWTH_GOAL, 2))
        for name, shown in HISTORY.items()
    ]
    return f"{found.where()}\n{table(headings, rows)}"


def generate_table(results: Path) -> str:
    """Tokens per second with a KV cache, and without one."""
    found = read_results(results / "generate.json", Generate)
    if found is None:
        return NOT_MEASURED
    headings = (
        *("model", "prompt + new tokens", "tokens/s with the cache", "without"),
        f"with / without, range (goal: at least {CACHE_GOAL:g})",
    )
    rows = [
        (
            row.case,
            f"{row.prompt_tokens} + {row.new_tokens}",
            number(row.tokens_per_second),
            number(row.tokens_per_second_without_cache),
            at_least(row.ratio, CACHE_GOAL, digits=2, quartiles=row.ratio_range),
        )
        for row in found.rows
    ]
    return f"{found.where()}\n{table(headings, rows)}"


def data_table(results: Path) -> str:
    """Tokens per second of reading training samples, and times relative to a bare loop and to a plain dataset."""
    found = read_results(results / "data.json", Data)
    if found is None:
        return NOT_MEASURED
    goals = found.goals
    headings = (
        "",
        f"million tokens/s (goal: at least {found.goal_tokens_per_second / 1e6:g} in order)",
        f"time / the bare loop's, quartiles (goal: at most {goals['training_over_memmap']:g} in order)",
        f"time / a dataset's, quartiles (goal: at most {goals['mixture_over_training']:g} in order)",
    )

    def over(*names: str) -> str:
        name = next((name for name in names if name in found.ratios), None)
        if name is None:
            return "-"
        value, quartiles = found.ratios[name], found.quartiles[name]
        return at_most(value, goals[name], 2, quartiles) if name in goals else with_quartiles(value, quartiles, 2)

    rows = []
    for reader, shown in READERS.items():
        speed = found.tokens_per_second[reader]
        million = f"{speed / 1e6:,.0f}"
        if reader == "training":
            million = at_least(speed / 1e6, found.goal_tokens_per_second / 1e6, 0)
        over_dataset = over(f"{reader}_over_training", f"{reader}_over_training_at_random")
        rows.append((shown, million, over(f"{reader}_over_memmap"), over_dataset))
    return f"{found.where()}\n{table(headings, rows)}"


TABLES: dict[str, Callable[[Path], str]] = {
    "pattention": pattention_table,
    "train-step": train_step_table,
    "recomputation": recomputation_table,
    "start-up": start_up_table,
    "history": history_table,
    "generate": generate_table,
    "data": data_table,
    "gpu": gpu_tables,
}


def draw(results: Path, picture: Path) -> bool:
    """Draws the time over the floor by size, with one panel per dtype. Returns false if there are no results."""
    found = read_results(results / "pattention.json", Pattention)
    if found is None:
        return False
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    dtypes = list(dict.fromkeys(row.dtype for row in found.rows))
    figure, axes = pyplot.subplots(1, len(dtypes), figsize=(4.5 * len(dtypes), 3.6), sharey=True, squeeze=False)
    for axis, dtype in zip(axes[0], dtypes, strict=True):
        rows = [row for row in found.rows if row.dtype == dtype]
        for form, label in FORMS.items():
            axis.plot(range(len(rows)), [row.over_floor.get(form, float("nan")) for row in rows], "o", label=label)
        axis.axhline(1.0, color="black", linewidth=0.8, label="the floor")
        axis.axhline(FLOOR_GOALS[dtype], color="gray", linewidth=0.8, linestyle="--", label="the goal")
        axis.set_xticks(range(len(rows)), [f"{row.width}, {row.num_tokens}" for row in rows], rotation=45)
        axis.set_title(dtype, loc="left")
        axis.set_xlabel("width, parameter tokens")
    axes[0][0].set_ylabel("time over the floor")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="upper right", ncols=len(FORMS) + 2, frameon=False)
    figure.tight_layout(rect=(0, 0, 1, 0.94))
    figure.savefig(picture, dpi=120, metadata={"Software": None})
    pyplot.close(figure)
    return True


def read_results(path: Path, form: type[Document]) -> Document | None:
    """The results file at `path`; None if there is none."""
    return form.model_validate_json(path.read_bytes()) if path.exists() else None
