"""Reads the state and progress of runs from their files, which may be in use or damaged.

Imports no torch and writes nothing. Files that cannot be read are reported in `notes`; they raise no error.
"""

import shlex
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from growctl.ladder.load import folder_name_error
from growctl.ladder.stage_plans import paths_of, plan_run, plan_stages
from growctl.ledger.entries import RunEntry
from growctl.ledger.ledger import Ledger
from growctl.runs.directory import (
    RunSet,
    controls_of,
    ladder_of,
    missing_note,
    own_schedule,
    read_jobs,
    read_run_set,
    steps_done,
)
from growctl.runs.find import RunNotFoundError
from growctl.runs.lock import find_holder, is_held
from growctl.runs.runs import ControlToCome, RunReport
from growctl.runs.stages import StageStatus, in_utc, read_stage
from growctl.runs_dir import CONTROL_INFIX, CONTROLS_LEFT_OUT, IMPORTED, RUN_NAME, RunPaths, RunsPaths
from growctl.schedule.blocks import Schedule
from growctl.text.suggestion import nearest
from model.errors import UserError

Content = TypeVar("Content")

RunState = Literal["finished", "running", "stopped", "failed", "not started", "imported", "damaged", "unreadable"]


@dataclass(frozen=True)
class RunStatus:
    """One run: a ladder or a control of one."""

    name: str
    state: RunState
    directory: str
    schedule: str | None = None
    """The schedule's path or name, as the user gave it."""
    control: str | None = None
    """Kind of control; None for a ladder."""
    control_of: str | None = None
    run_id: str | None = None
    """The unique id of the run; its copies have the same id."""
    ladder_id: str | None = None
    """The `run_id` of a control's ladder."""
    group: str | None = None
    """The name of the set of runs that it belongs to, such as the seeds of one schedule; None for a run of its own."""
    overrides: dict[str, Any] = field(default_factory=dict)
    """What sets it apart in that set: the swept keys of the schedule, dotted, with its values."""
    process: int | None = None
    """Process id of the growctl that holds the run's lock."""
    host: str | None = None
    """The machine that the process runs on, if the lock file names it."""
    since: str | None = None
    """When the process took the lock: ISO 8601, in UTC."""
    reason: str | None = None
    """Why the run failed."""
    resume_command: str | None = None
    """The command that starts or resumes the run; null if it is damaged, or a growctl is at work."""
    jobs: dict[str, str] = field(default_factory=dict)
    """The SLURM jobs last submitted for the run: {name: id}."""
    stages: tuple[StageStatus, ...] = ()
    notes: tuple[str, ...] = ()
    """Files that could not be read, and warnings."""

    @property
    def current(self) -> StageStatus | None:
        """The first stage that is not done, else the last."""
        return next((stage for stage in self.stages if stage.state != "done"), self.stages[-1] if self.stages else None)


@dataclass(frozen=True)
class StatusDocument:
    """The state of runs, as `growctl status --json` prints it. Unknown values are null."""

    runs_dir: Path
    preparing: tuple[str, ...]
    """Names of the datasets that a process is preparing now."""
    runs: tuple[RunStatus, ...]


def find_status(runs_dir: Path, names: Sequence[str] = (), leave_out: Collection[str] = ()) -> list[RunStatus]:
    """The runs called `names`, or all runs in `runs_dir`; each ladder is followed by its controls, started or not.

    Runs to `leave_out` are not read, which takes time, and are not among them; nor are the controls of such a ladder
    that were not started. Raises RunNotFoundError for an unknown name.
    """
    found: dict[str, tuple[RunStatus, list[RunStatus]]] = {}
    for paths in RunsPaths(runs_dir).all_runs():
        name = paths.directory.name
        if name not in leave_out:
            try:
                found[name] = _read_run(paths)
            except (OSError, UserError) as error:
                found[name] = RunStatus(name, "unreadable", str(paths.directory), notes=(str(error),)), []
    run_ids = {name: run.run_id for name, (run, _) in found.items() if run.run_id and not run.control}
    families: dict[str, list[RunStatus]] = {}
    for name, (run, planned) in found.items():
        ladder = run.control_of and ladder_of(run.control_of, run.ladder_id, run_ids)
        family = families.setdefault(ladder or name, [])
        family.append(replace(run, control_of=ladder))
        family += [control for control in planned if not RunPaths(Path(control.directory)).exists()]
    runs: dict[str, RunStatus] = {}
    for _, family in sorted(families.items()):
        runs |= {run.name: run for run in _completed(family, runs_dir)}
    for name in names:
        if name not in runs:
            raise RunNotFoundError(f"no run {name!r} in {runs_dir}; {nearest(name, runs) or 'it holds no runs'}")
    wanted: dict[str, RunStatus] = {}
    for name in names or runs:
        wanted |= {other.name: other for other in runs.values() if name in (other.name, other.control_of)}
    return list(wanted.values())


def being_prepared(runs_dir: Path) -> list[str]:
    """Names of the datasets below `runs_dir` that a process is preparing now."""
    return [name for name, lock in RunsPaths(runs_dir).dataset_locks().items() if is_held(lock)]


def _read_run(paths: RunPaths) -> tuple[RunStatus, list[RunStatus]]:
    """A run, even if its files are damaged, and the controls that its schedule generates."""
    directory, notes = paths.directory, list[str]()
    if paths.imported.exists():
        return _imported(paths), []
    holder = find_holder(directory)
    held_since = paths.lock.stat().st_mtime if holder else None  # the lock file outlives the lock
    queued = paths.jobs.exists() and not paths.has_begun()
    has_schedule = paths.schedule.exists() or not holder  # a run that has just started may lack its files
    has_ledger = paths.ledger.exists() or not (holder or queued)
    schedule = _read(paths.schedule, own_schedule, notes) if has_schedule else None
    recorded = _read(paths.ledger, _recorded, notes) if has_ledger else None
    entry, ended = recorded or (None, set[str]())
    cut = (
        schedule and schedule.growth.when == "slope"
    )  # what a stage did not use of a shared budget is left to the next
    plans = plan_run(schedule, steps_done(schedule, directory) if cut else ()) if schedule else []
    is_damaged, stages = bool(notes), list[StageStatus]()
    for plan in plans:
        reached = all(stage.state == "done" for stage in stages)
        stages.append(read_stage(paths_of(paths, plan), plan, held_since if reached else None, notes, reached=reached))
    ladder, _, kind = (entry.control_of or "", "", entry.control) if entry else directory.name.partition(CONTROL_INFIX)
    failed = next((stage for stage in stages if stage.state == "failed"), None)
    over = [plan for plan, stage in zip(plans, stages, strict=True) if plan.name in ended or stage.state == "done"]
    missing = [] if holder else [note for plan in over if (note := missing_note(paths_of(paths, plan)))]
    state: RunState = "stopped" if entry or any(stage.directory for stage in stages) else "not started"
    if holder:
        state = "running"
    elif paths.has_begun() and all(stage.state == "done" for stage in stages):
        state = "damaged" if is_damaged or missing else "finished"
    elif failed:
        state = "failed"
    notes += missing
    if paths.no_controls.exists():
        notes.append(f"{CONTROLS_LEFT_OUT}; `growctl run` with --controls trains them")
    of_ladder = RunPaths(directory.with_name(ladder) if kind else directory)
    run_set = _run_set(entry, of_ladder)
    run = RunStatus(
        name=directory.name,
        state=state,
        directory=str(directory),
        control=kind or None,
        control_of=ladder if kind else None,
        process=holder.process if holder else None,
        host=holder.host if holder else None,
        since=in_utc(held_since),
        reason=failed.reason if failed else None,
        jobs=_jobs(of_ladder, directory.name, notes),
        stages=tuple(stages),
        notes=tuple(notes),
        **_identity(entry) if entry else {},
        **asdict(run_set) if run_set else {},
    )
    if schedule is None or run.control is not None:
        return run, []
    try:
        return run, _planned_controls(run, schedule)
    except UserError as error:
        return replace(run, notes=(*run.notes, f"its controls cannot be planned: {error}")), []


def _identity(run: RunEntry) -> dict[str, Any]:
    return {name: getattr(run, name) for name in ("schedule", "run_id", "ladder_id")}


def _imported(paths: RunPaths) -> RunStatus:
    with Ledger(paths.ledger, read_only=True) as ledger:
        run = ledger.run()
    of_control: dict[str, Any] = {"control": run.control, "control_of": run.control_of, **_identity(run)}
    return RunStatus(paths.directory.name, "imported", str(paths.directory), notes=(IMPORTED,), **of_control)


def _planned_controls(ladder: RunStatus, schedule: Schedule) -> list[RunStatus]:
    """The controls that are still to come after a ladder, as not started; none if it leaves them out.

    Raises UserError if one cannot be planned.
    """
    run = RunPaths(Path(ladder.directory))
    if run.no_controls.exists():
        return []
    done = [stage.step for stage in ladder.stages if stage.state == "done" and not stage.branch_of]
    return [
        RunStatus(
            name=control.name,
            state="not started",
            directory=str(run.directory.with_name(control.name)),
            schedule=ladder.schedule,
            control=control.kind,
            control_of=ladder.name,
            group=ladder.group,
            overrides=ladder.overrides,
            jobs=_jobs(run, control.name, []),
            stages=tuple(
                StageStatus(plan.name, "waiting", num_parameters=plan.num_parameters, num_steps=plan.num_steps)
                for plan in plan_stages(control.schedule)
            ),
        )
        for control in controls_of(schedule.model_copy(update={"name": ladder.name}), done, run)
    ]


def _completed(family: list[RunStatus], runs_dir: Path) -> list[RunStatus]:
    """A ladder and its controls, each unfinished one with the command that resumes it, which is always the ladder's."""
    ladder = RunsPaths(runs_dir).run(family[0].control_of or family[0].name)
    command = ["growctl", "run", str(ladder.schedule)]
    if runs_dir != Path("runs"):
        command += ["--runs-dir", str(runs_dir)]
    asks = ["--controls"] if ladder.no_controls.exists() else []
    at_work = any(run.state == "running" for run in family)
    over = ("finished", "running", "imported", "damaged", "unreadable", *(("not started",) if at_work else ()))
    can_resume = ladder.schedule.is_file() and folder_name_error(ladder.directory) is None

    def completed(run: RunStatus) -> RunStatus:
        if run.state in over or not can_resume:
            return run
        return replace(run, resume_command=shlex.join([*command, *(asks if run.control else ())]))

    return list(map(completed, sorted(family, key=lambda run: (run.control is not None, run.name))))


def _read(path: Path, read: Callable[[Path], Content], notes: list[str]) -> Content | None:
    """What `read` makes of the file `path`; None, with a note, if it cannot."""
    try:
        return read(path)
    except (OSError, ValueError) as error:
        told = str(error).partition("\n")[0]
        notes.append(told if str(path) in told else f"{path} cannot be read: {told}")
        return None


def _recorded(ledger: Path) -> tuple[RunEntry, set[str]]:
    """The recorded run, and the names of the stages whose end is recorded."""
    with Ledger(ledger, read_only=True) as opened:
        run, ended = opened.run(), {stage.name for stage in opened.stages() if opened.finished(stage.name)}
    if run.control_of is None or RUN_NAME.fullmatch(run.control_of):
        return run, ended
    raise UserError(f"{ledger} names a ladder that no run can be called")  # such a name must not become a path


def _run_set(entry: RunEntry | None, ladder: RunPaths) -> RunSet | None:
    """The set that a run belongs to: from its ledger, else from the directory of its ladder."""
    if entry and entry.group is not None:
        return RunSet(entry.group, entry.overrides)
    with suppress(UserError, OSError):  # whoever resumes the run is told
        return read_run_set(ladder)
    return None


def _jobs(ladder: RunPaths, name: str, notes: list[str]) -> dict[str, str]:
    """The jobs of the run `name`: {job name: id}. The ladder's directory records them for its controls too."""
    ids = _read(ladder.jobs, lambda _: read_jobs(ladder), notes)
    return {job: number for job, number in (ids or {}).items() if job == name or job.startswith(f"{name}.")}


def with_controls_to_come(runs: Sequence[RunReport], runs_dir: Path) -> list[RunReport]:
    """`runs` of `runs_dir`, each ladder with the controls that its schedule asks for and that are not finished."""
    # The state of other runs says nothing about controls to come. There may be hundreds, and each takes a while.
    over = {run.name for run in runs if (run.finished if run.control else RunPaths(run.directory).no_controls.exists())}
    others = {paths.directory.name for paths in RunsPaths(runs_dir).runs_with_ledgers()} - {run.name for run in runs}
    waiting: dict[str, list[ControlToCome]] = {}
    for run in find_status(runs_dir, leave_out=others | over):
        if run.control and run.control_of and run.state not in ("finished", "imported"):
            sizes = [stage.num_parameters for stage in run.stages if not stage.branch_of]
            control = ControlToCome(run.name, run.control, sizes[-1] if sizes else None, run.state)
            waiting.setdefault(run.control_of, []).append(control)
    return [replace(run, controls_to_come=tuple(waiting.get(run.name, ()))) for run in runs]
