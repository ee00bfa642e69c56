"""What is done, running, stopped or failed, and how far: read from a run's files, which may be in use or broken.

No torch here, and nothing is written. What cannot be read is said in `notes`, never raised.
"""

import difflib
import fcntl
import json
import os
import shlex
import socket
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from growctl.controls.generate import plan_controls
from growctl.ladder.stage_plans import plan_stages
from growctl.ledger.ledger import Ledger, LedgerError, RunEntry, StageEntry
from growctl.report.read import RunNotFoundError
from growctl.run.lock import LOCK, Holder, find_holder, read_holder
from growctl.schedule.load import RUN_NAME, ScheduleError, load_resolved
from growctl.schema.blocks import Schedule
from growctl.status.stages import PlannedStage, StageStatus, in_utc, modified, read_stage
from model.errors import UserError

RunState = Literal["finished", "running", "stopped", "failed", "not started", "unreadable"]
FRESH_SECONDS = 60.0
"""A run whose files changed less than this ago may be at work where its lock cannot be seen from here."""

CONTROL_INFIX = "-control-"
"""What stands between a ladder's name and what its control is."""


@dataclass(frozen=True)
class RunStatus:
    """One run: a ladder or a control of one."""

    name: str
    state: RunState
    directory: str
    schedule: str | None = None
    """As the user named it."""
    control: str | None = None
    """Kind of control; None for a ladder."""
    control_of: str | None = None
    process: int | None = None
    """The growctl that is at it."""
    host: str | None = None
    """The machine that it runs on, where its lock says so."""
    here: bool | None = None
    """Whether that process is one of this machine."""
    since: str | None = None
    """When it started."""
    reason: str | None = None
    """Why it failed."""
    go_on: str | None = None
    """The command that goes on with it."""
    jobs: dict[str, str] = field(default_factory=dict)
    """SLURM jobs that were last submitted for it: {name: id}."""
    stages: tuple[StageStatus, ...] = ()
    notes: tuple[str, ...] = ()
    """What could not be read, and what to beware of."""

    @property
    def current(self) -> StageStatus | None:
        """The first stage that is not done, else the last."""
        return next((stage for stage in self.stages if stage.state != "done"), self.stages[-1] if self.stages else None)


@dataclass(frozen=True)
class _Holder:
    """The process that holds a run directory."""

    process: int | None
    host: str | None
    here: bool
    since: float


def find_status(runs_dir: Path, names: Sequence[str] = ()) -> list[RunStatus]:
    """The runs called `names`, or all in `runs_dir`; each ladder is followed by its controls, begun or not.

    Raises RunNotFoundError for a name that is not there.
    """
    families: dict[str, list[RunStatus]] = {}
    directories = run_directories(runs_dir)
    for directory in directories:
        try:
            run, planned = _read_run(directory)
        except (OSError, UserError) as error:
            run, planned = RunStatus(directory.name, "unreadable", str(directory), notes=(str(error),)), []
        family = families.setdefault(run.control_of or run.name, [])
        family += [run, *(control for control in planned if Path(control.directory) not in directories)]
    runs: dict[str, RunStatus] = {}
    for _, family in sorted(families.items()):
        runs |= {run.name: run for run in _completed(family, runs_dir)}
    for name in names:
        if name not in runs:
            near = difflib.get_close_matches(name, runs, n=3, cutoff=0.4) or list(runs)[:5]
            hint = f"; the nearest are {', '.join(near)}" if near else ", and no other"
            raise RunNotFoundError(f"no run {name!r} in {runs_dir}{hint}")
    found: dict[str, RunStatus] = {}
    for name in names or runs:
        found |= {other.name: other for other in runs.values() if name in (other.name, other.control_of)}
    return list(found.values())


def run_directories(runs_dir: Path) -> list[Path]:
    """Directories of `runs_dir` that hold a run, or what is left of one."""
    signs = ("schedule.yaml", "ledger.db", "stages", LOCK)
    found = sorted(runs_dir.iterdir()) if runs_dir.is_dir() else []

    def may_be_run(path: Path) -> bool:
        return any(os.path.exists(path / sign) for sign in signs) or (path.is_dir() and not os.access(path, os.X_OK))

    return [path for path in found if not path.name.startswith(".") and may_be_run(path)]


def being_prepared(runs_dir: Path) -> list[str]:
    """Datasets below `runs_dir` that a process is at work on."""
    locks = (runs_dir / ".datasets").glob(".*.lock")
    return [path.name[1:].removesuffix(".lock") for path in sorted(locks) if _is_held(path)]


def status_document(runs_dir: Path, runs: Sequence[RunStatus]) -> dict[str, Any]:
    """`runs` for JSON: nats a token, seconds, times in UTC. What is unknown is null."""
    return {"runs_dir": str(runs_dir), "preparing": being_prepared(runs_dir), "runs": [asdict(run) for run in runs]}


def _read_run(directory: Path) -> tuple[RunStatus, list[RunStatus]]:
    """The run in `directory`, whatever its files are like, and the controls that its schedule asks for."""
    notes: list[str] = []
    holder = _holder(directory, notes)
    schedule = _schedule(directory / "schedule.yaml", notes, at_work=holder is not None)
    entry, recorded = _ledger(directory / "ledger.db", notes, at_work=holder is not None)
    stages: list[StageStatus] = []
    for planned in _planned(directory, schedule, recorded):
        reached = all(stage.state == "done" for stage in stages)
        since = holder.since if holder and reached else None
        stages.append(read_stage(directory, planned, reached=reached, held_since=since, notes=notes))
    ladder, _, kind = (entry.control_of or "", "", entry.control) if entry else directory.name.partition(CONTROL_INFIX)
    failed = next((stage for stage in stages if stage.state == "failed"), None)
    state: RunState = "stopped" if entry or any(stage.directory for stage in stages) else "not started"
    if holder:
        state = "running"
    elif stages and all(stage.state == "done" for stage in stages):
        state = "finished"
    elif failed:
        state = "failed"
    if state in ("stopped", "failed"):
        notes += _fresh(stages, read_holder(directory / LOCK))
    run = RunStatus(
        name=directory.name,
        state=state,
        directory=str(directory),
        schedule=entry.schedule if entry else None,
        control=kind or None,
        control_of=ladder if kind else None,
        process=holder.process if holder else None,
        host=holder.host if holder else None,
        here=holder.here if holder else None,
        since=in_utc(holder.since) if holder else None,
        reason=failed.reason if failed else None,
        jobs=_jobs(directory.with_name(ladder) if kind else directory, directory.name, notes),
        stages=tuple(stages),
        notes=tuple(notes),
    )
    if schedule is None or run.control is not None:
        return run, []
    try:
        return run, _planned_controls(run, schedule)
    except UserError as error:
        note = f"its controls cannot be planned: {error}"
        return replace(run, notes=(*run.notes, note)), []


def _planned_controls(ladder: RunStatus, schedule: Schedule) -> list[RunStatus]:
    """The controls that a ladder's schedule asks for, as if none had begun. UserError where one cannot be planned."""
    steps_done = [stage.step for stage in ladder.stages if stage.state == "done"]
    return [
        RunStatus(
            name=control.name,
            state="not started",
            directory=str(Path(ladder.directory).with_name(control.name)),
            schedule=ladder.schedule,
            control=control.kind,
            control_of=ladder.name,
            jobs=_jobs(Path(ladder.directory), control.name, []),
            stages=tuple(
                StageStatus(plan.name, "waiting", num_parameters=plan.num_parameters, num_steps=plan.num_steps)
                for plan in plan_stages(control.schedule)
            ),
        )
        for control in plan_controls(schedule.model_copy(update={"name": ladder.name}), steps_done)
    ]


def _completed(family: list[RunStatus], runs_dir: Path) -> list[RunStatus]:
    """A ladder and its controls, each with the command that goes on with it, which is always the ladder's."""
    ladder = family[0].control_of or family[0].name
    at_work = any(run.state == "running" for run in family)
    path = runs_dir / ladder / "schedule.yaml"
    command = ["growctl", "run", *([str(path)] if path.is_file() else ["SCHEDULE", "--name", ladder])]
    if runs_dir != Path("runs"):
        command += ["--runs-dir", str(runs_dir)]
    over = ("finished", "running", "unreadable", *(("not started",) if at_work else ()))
    family = sorted(family, key=lambda run: (run.control is not None, run.name))
    return [run if run.state in over else replace(run, go_on=shlex.join(command)) for run in family]


def _planned(directory: Path, schedule: Schedule | None, recorded: Sequence[StageEntry]) -> list[PlannedStage]:
    """The stages: by the schedule, else by the ledger, else by the directories that are there."""
    if schedule is not None:
        return [
            PlannedStage(plan.index, plan.name, plan.num_parameters, plan.num_steps, plan.tokens_per_step)
            for plan in plan_stages(schedule)
        ]
    if recorded:
        return [
            PlannedStage(index, entry.name, entry.num_parameters, entry.num_steps, entry.tokens_per_step)
            for index, entry in enumerate(recorded)
        ]
    parts = [path.name.partition("-") for path in (directory / "stages").glob("*-*") if path.is_dir()]
    return [PlannedStage(int(index), name) for index, _, name in sorted(parts) if index.isdecimal()]


def _holder(directory: Path, notes: list[str]) -> _Holder | None:
    """Who holds a run directory; None where nobody does. The lock goes with its process, the file stays."""
    lock = directory / LOCK
    try:
        holder = find_holder(directory)
        if holder is None:
            return None
        status = lock.stat()
    except OSError as error:
        notes.append(f"{lock}: whether a growctl is at work cannot be told: {error.strerror}")
        return None
    here = _locked_here(status.st_ino, holder.process) or holder.host == socket.gethostname()
    return _Holder(holder.process, holder.host, here, status.st_mtime)


def _is_held(lock: Path) -> bool:
    """Whether a process holds `lock`, by asking for a share of it for an instant."""
    if not lock.is_file():
        return False
    with lock.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _locked_here(inode: int, process: int | None) -> bool:
    """Whether this machine's kernel knows `process` as the holder of a lock on the file numbered `inode`."""
    try:
        locks = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return False
    return any(f" {process} " in line and f":{inode} " in line for line in locks)


def _schedule(path: Path, notes: list[str], at_work: bool) -> Schedule | None:
    """The run's own; one that a process at work has not come to writing is no trouble."""
    try:
        return load_resolved(path)
    except FileNotFoundError:
        notes += [] if at_work else [f"{path} is not there"]
    except (ScheduleError, OSError) as error:
        told = str(error).removeprefix(f"{path}: ").partition("\n")[0]
        notes.append(f"{path} cannot be read: {told}")
    return None


def _ledger(path: Path, notes: list[str], at_work: bool) -> tuple[RunEntry | None, list[StageEntry]]:
    """What the run is and its stages, as recorded; a ledger that is still to be made is no trouble."""
    if at_work and not path.exists():
        return None, []
    try:
        with Ledger.open(path, read_only=True) as ledger:
            run, stages = ledger.run(), ledger.stages()
        names = [*([run.control_of] if run.control else []), *(stage.name for stage in stages)]
        if all(isinstance(name, str) and RUN_NAME.fullmatch(name) for name in names):
            return run, stages
        notes.append(f"{path} holds names that no run or stage can have")  # they would become paths
    except LedgerError as error:
        notes.append(str(error))
    return None, []


def _jobs(ladder: Path, name: str, notes: list[str]) -> dict[str, str]:
    """The jobs of the run `name`, which are written down with its ladder's."""
    path = ladder / "slurm" / "jobs.json"
    try:
        ids = json.loads(path.read_bytes())
        return {job: str(number) for job, number in ids.items() if job == name or job.startswith(f"{name}.")}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        notes.append(f"{path} cannot be read: {error}")
        return {}


def _fresh(stages: Sequence[StageStatus], last: Holder) -> list[str]:
    """A warning where nobody holds the run and its files still changed a moment ago.

    There is none where the `last` holder left the run in peace, or was of this machine, where its lock is seen.
    """
    directories = [Path(stage.directory) for stage in stages if stage.directory]
    times = [modified(directory / name) for directory in directories for name in ("metrics.jsonl", "log.txt")]
    age = time.time() - max((moment for moment in times if moment), default=0.0)
    if abs(age) > FRESH_SECONDS or last == Holder() or last.host == socket.gethostname():
        return []
    return [
        f"its files changed {max(0, round(age))} s ago; another machine may be at it, if its lock cannot be seen here"
    ]
