"""Makes the GPU tables of docs/performance.md from the results files that benchmarks/gpu/run.sh writes."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from growctl.text.formatting import byte_count, short_count
from tools.tables import NOT_MEASURED, at_least, number, ratio, share_at_least, table

SPEED_UP_GOAL = 2.0
"""How many times as fast as the written-out form the best form of a Pattention should be."""

MFU_GOAL, MFU_FROM_PARAMETERS = 0.5, 350_000_000
CONTEXT_GOAL, GOAL_CONTEXT = 1.5, 8192
"""The Tokenformer's tokens per second over the Transformer's, at that context."""

MEMORY_GOAL = 0.15
"""The largest allowed deviation of `plan`'s bytes from the measured bytes."""

FORMS = ("written_out", "ours", "compiled", "triton_elementwise", "triton_full")


class Machine(BaseModel):
    """The device and the versions of the software on it."""

    device: str
    versions: dict[str, str | None] = {}


class Section(BaseModel):
    """The cases of one section, as the benchmark wrote them."""

    status: str
    reason: str | None = None
    rows: list[dict[str, Any]] = []
    failures: list[dict[str, Any]] = []
    skipped: list[dict[str, Any]] = []


class GpuResults(BaseModel):
    """A results file."""

    date: str
    note: str | None = None
    trial: bool
    machine: Machine
    sections: dict[str, Section]

    def rows(self, section: str, what: str | None = None) -> list[dict[str, Any]]:
        """The finished cases of a section; only those of the kind `what`, if given."""
        found = self.sections[section].rows if section in self.sections else []
        return [row for row in found if what is None or row.get("what") == what]


def gpu_tables(results: Path) -> str:
    """Every table, for each device that has results."""
    parts = []
    for file in sorted(results.glob("gpu_*.json")):
        found = GpuResults.model_validate_json(file.read_bytes())
        if found.trial:
            raise ValueError(f"{file} is from a trial run, whose times mean nothing; remove it")
        parts.append(device_tables(found, file))
    return "\n".join(parts) or NOT_MEASURED


def device_tables(results: GpuResults, file: Path) -> str:
    """Every table of one results file, and what is missing in it."""
    versions = ", ".join(f"{name} {version}" for name, version in results.machine.versions.items() if version)
    parts = [f"### {results.machine.device}\n", f"{results.date}; {versions} (`benchmarks/results/{file.name}`).\n"]
    if results.note:
        parts.append(f"{results.note}\n")
    for title, make in TABLES.items():
        parts += [f"**{title}**\n", make(results)]
    return "\n".join([*parts, _missing(results)])


def _best(results: GpuResults) -> str:
    rows = []
    for row in [*results.rows("device", "bf16 product"), *results.rows("device", "bf16 product, sustained")]:
        rate = row["flops_per_second"]["median"] / 1e12
        share = share_at_least(row["share"], None)
        rows.append((f"{row['what']}, {row['size']} x {row['size']}", f"{number(rate)} TFLOP/s", share))
    for row in results.rows("device", "copy"):
        rows.append(("copy, read plus written", f"{number(row['bytes_per_second']['median'] / 1e12)} TB/s", ""))
    return table(("", "measured", "of the data sheet's peak"), rows)


def _pattention(results: GpuResults) -> str:
    rows = []
    for row in results.rows("pattention", "times"):
        medians = {
            name: form["milliseconds"]["median"] for name, form in row["forms"].items() if "milliseconds" in form
        }
        best = min((medians[name] for name in FORMS[1:] if name in medians), default=None)
        both = best is not None and "written_out" in medians
        over = [ratio(row["over_floor"].get(name)) for name in FORMS]
        gained = at_least(medians["written_out"] / best, SPEED_UP_GOAL) if both else "n/a"
        rows.append((f"{row['tokens']:,}, {row['num_tokens']:,}", number(medians.get("floor")), *over, gained))
    goal = f"written out over the best (goal: {SPEED_UP_GOAL:g})"
    return table(("data tokens, n", "floor, ms", *(f"{name.replace('_', ' ')} / floor" for name in FORMS), goal), rows)


def _errors(results: GpuResults) -> str:
    rows = []
    for row in results.rows("pattention", "errors"):
        worst = [_worst(row["errors"].get(name)) for name in FORMS]
        rows.append((str(row["num_tokens"]), *worst))
    return table(("n", *(name.replace("_", " ") for name in FORMS)), rows)


def _worst(errors: dict[str, float] | str | None) -> str:
    """The largest error of the output and the three gradients; NaN if one of them is."""
    if not isinstance(errors, dict):
        return "n/a"
    return "NaN" if any(map(math.isnan, errors.values())) else f"{max(errors.values()):.2g}"


def _pieces(results: GpuResults) -> str:
    found = results.rows("kernels", "pieces")
    names = dict.fromkeys(name for row in found for name in row["over_plain"])
    rows = [(name, *(ratio(row["over_plain"].get(name)) for row in found)) for name in names]
    return table(("piece", *(f"n {row['num_tokens']}" for row in found)), rows)


def _training(results: GpuResults) -> str:
    found = [row for kernels in ("eager", "compiled", "triton") for row in results.rows(f"training_{kernels}", "steps")]
    rows = []
    for row in sorted(found, key=lambda row: row["parameters"]):
        goal = MFU_GOAL if row["parameters"] >= MFU_FROM_PARAMETERS else None
        size, memory = short_count(row["parameters"]), row["peak_bytes"]
        rows.append(
            (
                f"{size}, {row['kernels']}",
                f"{row['tokens_per_second']:,.0f}",
                share_at_least(row["mfu"], goal),
                byte_count(memory) if memory else "n/a",
            )
        )
    return table(("model, kernels", "tokens/s", f"MFU (goal: {MFU_GOAL:.0%} from 354M on)", "peak memory"), rows)


def _contexts(results: GpuResults) -> str:
    speeds = {
        (row["family"], row["kernels"], row["context"]): row["tokens_per_second"] for row in results.rows("contexts")
    }
    rows = []
    for context in sorted({context for _, _, context in speeds}):
        best: dict[str, float] = {}
        for (family, _, other), speed in speeds.items():
            if other == context:
                best[family] = max(speed, best.get(family, 0.0))
        ours, theirs = best.get("tokenformer"), best.get("transformer")
        over = ours / theirs if ours and theirs else None
        judged = ratio(over) if over is None or context != GOAL_CONTEXT else at_least(over, CONTEXT_GOAL)
        rows.append((f"{context:,}", *(f"{speed:,.0f}" if speed else "n/a" for speed in (ours, theirs)), judged))
    goal = f"ratio (goal: {CONTEXT_GOAL:g} at {GOAL_CONTEXT:,})"
    return table(("context", "Tokenformer, tokens/s", "Transformer, tokens/s", goal), rows)


def _zero(results: GpuResults) -> str:
    parts = ("lasting_bytes", "activation_bytes", "peak_bytes")
    rows = []
    for row in results.rows("zero"):
        planned = row.get("planned_over_measured", {})
        judged = [_within(planned[part]) if part in planned else "n/a" for part in parts]
        rows.append((f"{row['size']}, {row['kernels']}", ratio(row["engine_over_plain"]), *judged))
    headings = ("model, kernels", "time, ZeRO-1 / plain loop", "weights and optimizer", "activations", "at most")
    return table(headings, rows)


def _within(ratio: float) -> str:
    met = abs(ratio - 1) <= MEMORY_GOAL
    return f"{ratio:.2f}, met" if met else f"**{ratio:.2f}, not met**"


def _repeatability(results: GpuResults) -> str:
    words = {True: "the same bits", False: "other bits"}
    rows = [
        (row["kernels"], words[row["same_in_a_process"]], words[row["same_across_processes"]])
        for row in results.rows("repeatability")
    ]
    return table(("kernels", "repeated in the same process", "in another process"), rows)


def _syncs(results: GpuResults) -> str:
    rows = []
    for row in results.rows("host_syncs"):
        places = "; ".join(f"{place['place']} ({place['count']})" for place in row["places"]) or "-"
        calls = row["waiting_calls"]
        counted = str(sum(calls.values())) if isinstance(calls, dict) else "n/a"
        rows.append((row["loop"], str(row["warnings"]), counted, places))
    return table(("loop", "warnings", "waiting CUDA calls", "where"), rows)


TABLES: dict[str, Callable[[GpuResults], str]] = {
    "The device at its best": _best,
    "One Pattention, forward and backward, bf16": _pattention,
    "Largest deviation of a Pattention from float32, relative to the largest number (bf16 rounds by 0.004)": _errors,
    "Time of each triton kernel over that of the product (or copy) that it contains": _pieces,
    "Training, plain loop": _training,
    "Training speed by context, with equal parameters and the fastest kernels of each model": _contexts,
    "DeepSpeed ZeRO-1 on one GPU; bytes planned by `plan` over measured bytes (goal: within 15 %)": _zero,
    "The same training steps, repeated": _repeatability,
    "Waits of the host in three training steps (the CUDA calls include one by the profiler itself)": _syncs,
}


def _missing(results: GpuResults) -> str:
    """Lists what was not measured, and why."""
    lines = []
    for name, section in results.sections.items():
        if section.status not in ("done", "shortened"):
            lines.append(f"- `{name}`: {section.status}" + (f", {section.reason}" if section.reason else ""))
        lines += [f"- `{name}`, {_case(failure)}: {failure['error']}" for failure in section.failures]
        if section.skipped:
            lines.append(f"- `{name}`: cases not run for lack of time: {len(section.skipped)}")
    return "\n".join(["Not measured:\n", *lines, ""]) if lines else "Every case was measured.\n"


def _case(failure: dict[str, Any]) -> str:
    left_out: Sequence[str] = ("error", "where")
    return " ".join(str(value) for name, value in failure.items() if name not in left_out)
