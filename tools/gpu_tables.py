"""Makes the GPU tables of docs/performance.md from the results files that benchmarks/gpu/run.sh writes.

The page says below them what the sections measure, and their goals.
"""

import json
from collections.abc import Iterator
from typing import Any

from tools.results import RESULTS
from tools.tables import NOT_MEASURED, number, table

_SPEED = ("tokens_per_second", "mfu", "peak_bytes")
_MEMORY = ("engine_over_plain", "planned_over_measured")
COLUMNS: dict[str, tuple[str, ...]] = {
    "device": ("what", "size", "flops_per_second", "bytes_per_second", "share"),
    "kernels": ("what", "num_tokens", "over_plain", "errors"),
    "pattention": ("what", "tokens", "num_tokens", "over_floor", "errors"),
    **{f"training_{kernels}": ("what", "size", "parameters", *_SPEED) for kernels in ("eager", "compiled", "triton")},
    "zero": ("size", "kernels", *_MEMORY),
    "contexts": ("family", "kernels", "context", *_SPEED),
    "host_syncs": ("loop", "warnings", "places"),
    "repeatability": ("kernels", "same_in_a_process", "same_across_processes"),
}
"""The columns of each section's table."""


def gpu_tables() -> str:
    """The tables of every device that has results."""
    files = sorted(RESULTS.glob("gpu_*.json"))
    return "\n".join(device_tables(json.loads(file.read_text()), file.name) for file in files) or NOT_MEASURED


def device_tables(found: Any, file: str) -> str:
    """A table for each section of the results in `file`, and what is missing. ValueError for those of a trial."""
    if found["trial"]:
        raise ValueError(f"{file} is from a trial run, whose times mean nothing; remove it")
    versions = ", ".join(f"{name} {version}" for name, version in found["machine"]["versions"].items() if version)
    parts = [f"### {found['machine']['device']}\n", f"{found['date']}; {versions} (`benchmarks/results/{file}`).\n"]
    if found["note"]:
        parts.append(f"{found['note']}\n")
    for name, section in found["sections"].items():
        cells = [{column: _shown(row.get(column)) for column in COLUMNS[name]} for row in section.get("rows", [])]
        parts += [f"**`{name}`**\n", table(cells)]
    missing = "\n".join(_missing(found["sections"]))
    return "\n".join([*parts, f"Not measured:\n\n{missing}\n" if missing else "Every case was measured.\n"])


def _shown(value: Any) -> str:
    """A value as a cell shows it: a measurement by its median, an object by its names and values."""
    match value:
        case None:
            return "-"
        case {"median": median}:
            return _shown(median)
        case dict():
            return ", ".join(f"{name} {_shown(inner)}" for name, inner in value.items())
        case list():
            return "; ".join(map(_shown, value)) or "-"
        case float():
            return f"{value:.3g}" if value < 0.1 or value >= 1e9 else number(value)
    return str(value)


def _missing(sections: dict[str, Any]) -> Iterator[str]:
    """What was not measured, and why."""
    for name, section in sections.items():
        if section["status"] not in ("done", "shortened"):
            yield f"- `{name}`: {section['status']}" + (f", {section['reason']}" if section.get("reason") else "")
        for failure in section.get("failures", []):
            case = " ".join(str(value) for key, value in failure.items() if key not in ("error", "where"))
            yield f"- `{name}`, {case}: {failure['error']}"
        if section.get("skipped"):
            yield f"- `{name}`: cases not run for lack of time: {len(section['skipped'])}"
