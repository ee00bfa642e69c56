"""What the runs were trained on: devices, precision, ZeRO stage and the versions of the software."""

from collections.abc import Sequence
from dataclasses import dataclass

from growctl.analysis.runs import RunReport
from growctl.ledger.starts import read_starts
from growctl.runs_dir import RunPaths
from growctl.text.section import Cell, Column, Section, Table
from stages.metrics import read_events

SOFTWARE = {"growctl": "growctl", "python": "Python", "torch": "torch", "deepspeed": "DeepSpeed"}
"""The columns of the recorded software."""

_COLUMNS = (
    Column("runs", is_number=False),
    Column("device", is_number=False),
    Column("devices"),
    Column("precision", is_number=False),
    Column("ZeRO stage", drop=5),
    *(Column(label, is_number=False, drop=drop) for label, drop in zip(SOFTWARE.values(), (4, 1, 3, 2), strict=True)),
)
_NO_METRICS = "The training log (metrics.jsonl) is not here, only the ledger, which does not record it."
_NO_STARTS = "The run did not record it when it was started."


@dataclass(frozen=True)
class Environment:
    """What a run, or a part of it, was trained on."""

    device: str
    num_devices: int
    """One rank trains on each."""
    precision: str
    """`bf16` or `fp32`."""
    zero_stages: tuple[int, ...]
    """DeepSpeed's ZeRO stages; empty if they are not known."""
    software: tuple[tuple[str, tuple[str, ...]], ...]
    """The versions of each package, or of Python, with which the ladder was started; empty if they are not known."""


def environments(run: RunReport) -> tuple[Environment, ...]:
    """What a run was trained on, in the order of the work; empty if it has trained nothing itself."""
    software = _software(run)
    return tuple(Environment(*machine, _zero_stages(run, machine), software) for machine in run.machines)


def section(runs: Sequence[RunReport]) -> Section | None:
    """A row for each environment, with its runs; None if nothing was trained."""
    trained_in: dict[Environment, list[str]] = {}
    for run in runs:
        for environment in environments(run):
            trained_in.setdefault(environment, []).append(run.name)
    rows = [_row(found, names, len(names) == len(runs) > 1) for found, names in trained_in.items()]
    table = Table.of("environment", _COLUMNS, rows)
    if not rows:
        return None
    return Section("environment", "Environment", (table,), in_terminal=False, is_detail=True)


def _row(found: Environment, names: Sequence[str], are_all: bool) -> list[Cell]:
    software = dict(found.software)
    zero = " and ".join(map(str, found.zero_stages))
    return [
        Cell(f"all {len(names)} runs" if are_all else ", ".join(names)),
        Cell(found.device),
        Cell(str(found.num_devices), found.num_devices),
        Cell(found.precision),
        Cell(zero, found.zero_stages[0]) if zero else Cell("-", why=_NO_METRICS),
        *(
            Cell(" and ".join(software[name])) if name in software else Cell("-", why=_NO_STARTS)
            for name in SOFTWARE
        ),
    ]  # fmt: skip


def _zero_stages(run: RunReport, machine: tuple[str, int, str]) -> tuple[int, ...]:
    """The ZeRO stages of the attempts on `machine`."""
    found = set()
    for _, _, stage in RunPaths(run.directory).stages_found():
        for record in (*read_events(stage.metrics, "start"), *read_events(stage.release.metrics, "start")):
            if (record["device"], record["num_devices"], record["precision"]) == machine:
                found.add(record["zero_stage"])
    return tuple(sorted(found))


def _software(run: RunReport) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The versions that were installed when the run, or the ladder that it controls, was started."""
    ladder = RunPaths(run.directory.with_name(run.control_of) if run.control_of else run.directory)
    versions: dict[str, list[str]] = {}
    for start in read_starts(ladder):
        for name, version in start.software.items():
            if version not in versions.setdefault(name, []):
                versions[name].append(version)
    return tuple((name, tuple(versions[name])) for name in SOFTWARE if name in versions)
