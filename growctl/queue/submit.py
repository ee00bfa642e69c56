"""Submits a run to SLURM as jobs, through submitit.

`launch.slurm.job: ladder` submits one job per run, with as many machines as its largest stage needs. `stage` submits
one job per stage and its release, with that stage's machines; each job waits for the one before. Each control is a
separate run. It waits for the ladder, because its budget may depend on it and because users want the ladder first;
controls do not wait for each other. Finished stages get no job.

The first job prepares the dataset unless it exists already. This can take hours, which login nodes do not allow.
`growctl prepare` prepares it beforehand, in a job without devices.
"""

import json
import math
import shlex
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from io import StringIO
from itertools import groupby
from pathlib import Path
from typing import Any

from growctl.ladder.stage_plans import StagePlan
from growctl.launch.machines import LaunchError, plain_path
from growctl.launch.resolve import machines_of
from growctl.launch.slurm_machines import job_states
from growctl.queue.slurm_job import JobPart
from growctl.run.lock import hold
from growctl.run.requests import (
    LadderRequest,
    RunError,
    RunFailed,
    RunRequest,
    left_to_train,
    schedule_yaml,
)
from growctl.run.screen import Screen
from growctl.runs_dir import RunPaths
from growctl.schema.launch_block import LaunchBlock
from stages.checkpoint.files import write_file
from stages.counted import counted

_OWN_OPTIONS = {
    "account": "launch.slurm.account",
    "constraint": "launch.slurm.constraint",
    "cpus-per-task": "launch.slurm.cpus_per_device",
    "gpus-per-node": "launch.devices and launch.slurm.gpus",
    "mem": "launch.slurm.memory",
    "nodes": "launch.nodes",
    "ntasks-per-node": "launch.devices",
    "partition": "launch.slurm.partition",
    "qos": "launch.slurm.qos",
    "signal": "launch.slurm.warn_before",
    "time": "launch.slurm.time_limit",
}
"""Options of sbatch that growctl sets from schedule keys."""

_NOT_OPTIONS = {
    "array",
    "dependency",
    "error",
    "export",
    "job-name",
    "ntasks",
    "open-mode",
    "output",
    "requeue",
    "wrap",
}
"""Options of sbatch that growctl sets itself."""

_LONGEST_WARNING = 65_535
"""SLURM's limit for the time between the warning and the time limit, in seconds."""


class AlreadySubmitted(RunError):
    """Jobs of the run are queued or running."""


@dataclass(frozen=True)
class Job:
    """One job: a run, or one stage of it."""

    name: str
    request: RunRequest
    stages: tuple[StagePlan, ...]
    """The stages and releases that it trains."""

    nodes: int
    last_stage: int | None
    """The index of its last stage; None: the last stage of the run."""

    after: str | None
    """The name of the job that must succeed first."""


def plan_jobs(request: LadderRequest, requests: Sequence[RunRequest]) -> list[Job]:
    """The jobs for the unfinished stages of the ladder and its controls (`requests`, in that order)."""
    jobs: list[Job] = []
    ladder_end = None
    for run in requests:
        launch = run.schedule.launch
        unfinished = left_to_train(run.schedule, request.directory(run))
        left = tuple(plan for plan in unfinished if request.trains(plan.index))
        by_stage = [tuple(parts) for _, parts in groupby(left, key=lambda plan: plan.index)]
        parts = by_stage if launch.slurm.job == "stage" else [left] * bool(left)
        after = ladder_end
        for part in parts:
            own = launch.slurm.job == "stage"
            name = f"{run.name}.{part[0].branch_of or part[0].name}" if own else run.name
            nodes = max(launch.nodes_of(stage.index) for stage in part)
            last = part[-1].index if own else request.last_stage
            jobs.append(Job(name, run, part, nodes, last, after))
            after = name
        if run.control is None:
            ladder_end = after
    return jobs


def nothing_to_submit(request: LadderRequest) -> str:
    """The message if every stage that `request` includes is done."""
    stages, last = request.ladder.schedule.stages, request.last_stage
    up_to = "" if last is None else f" up to stage {stages[last].name}"
    return f"{request.ladder.name}: done{up_to}; there is nothing to submit"


def job_executor(job: Job, folder: Path, dependency: str | None) -> Any:
    """submitit's executor with the options of `job`, for files and logs in `folder`. Writes nothing.

    `dependency` is the id of the job that must succeed first.
    """
    from submitit.slurm.slurm import SlurmExecutor

    class Executor(SlurmExecutor):
        """An executor that can also be created on a machine without SLURM, to show its script."""

        @classmethod
        def affinity(cls) -> int:
            return 1

    launch = job.request.schedule.launch
    slurm = launch.slurm
    # `exec` replaces the shell by Python, so that `--signal=B:` warns Python. Without `B:`, SLURM would warn only the
    # workers, which cannot act on it.
    executor = Executor(folder, max_num_timeout=slurm.max_requeues, python=f"exec {shlex.quote(sys.executable)}")
    executor.update_parameters(
        job_name=job.name,
        nodes=job.nodes,
        ntasks_per_node=launch.devices,
        cpus_per_task=slurm.cpus_per_device,
        gpus_per_node=launch.devices if slurm.gpus else None,
        mem="0" if slurm.memory is None else f"{math.ceil(slurm.memory / 2**20)}M",  # 0: all of it
        time=math.ceil(slurm.time_limit / 60),
        partition=slurm.partition,
        account=slurm.account,
        qos=slurm.qos,
        constraint=slurm.constraint,
        dependency=f"afterok:{dependency}" if dependency else None,
        setup=["export PYTHONSAFEPATH=1 SUBMITIT_PREEMPT_SIGNAL=USR2", *slurm.setup],
        stderr_to_stdout=True,
        use_srun=False,
        wckey=None,
        additional_parameters={
            "signal": f"B:USR2@{slurm.warn_before}",
            "requeue": True,
            **({"kill-on-invalid-dep": "yes"} if dependency else {}),
            **{name: value for name, value in slurm.options.items() if value is not False},
        },
    )
    return executor


def check_slurm(launch: LaunchBlock) -> None:
    """Raises LaunchError if `launch.slurm` contains values that no job can have."""
    slurm = launch.slurm
    if not 0 < slurm.warn_before <= min(_LONGEST_WARNING, slurm.time_limit - 60):
        raise LaunchError(
            f"launch.slurm.warn_before = {slurm.warn_before} s: must be above 0, {_LONGEST_WARNING} at most, and leave "
            f"a minute or more of launch.slurm.time_limit, {slurm.time_limit} s"
        )
    for name in slurm.options:
        if name in _OWN_OPTIONS:
            raise LaunchError(f"launch.slurm.options.{name}: set {_OWN_OPTIONS[name]} instead")
        if name in _NOT_OPTIONS:
            raise LaunchError(f"launch.slurm.options.{name}: is set by growctl")
    named = {"partition": slurm.partition, "account": slurm.account, "qos": slurm.qos, "constraint": slurm.constraint}
    for name, value in [*named.items(), *((f"options.{name}", value) for name, value in slurm.options.items())]:
        if isinstance(value, str) and not value.isprintable():
            raise LaunchError(f"launch.slurm.{name} = {value!r}: must be one line of text")


def job_paths(request: LadderRequest) -> RunPaths:
    """The ladder's paths, absolute. They hold scripts, pickles and logs of all jobs, also those of the controls."""
    return RunPaths(plain_path(request.directory(request.ladder), "the run's directory"))


def submit(request: LadderRequest, screen: Screen) -> None:
    """Submits jobs for the unfinished stages of a ladder and its controls, and prints a line for each.

    Raises RunError and LaunchError before anything is written, for example if jobs of this run are already queued or
    running; RunFailed if SLURM rejects a job, after cancelling the jobs submitted before it.
    """
    launch = request.ladder.schedule.launch
    check_slurm(launch)
    machines = machines_of(request.ladder.schedule)
    machines.check(request.runs_dir)
    requests = request.checked(machines)
    run = job_paths(request)
    _check_no_jobs(run)
    jobs = plan_jobs(request, requests)
    directory = request.directory(request.ladder)
    if not jobs:
        screen.message(nothing_to_submit(request))
        return
    with hold(directory):
        pass  # checks that no growctl runs it now; the first job needs the lock as soon as it is submitted
    run.jobs_folder.mkdir(exist_ok=True)
    with hold(run.jobs_folder):
        _check_no_jobs(run)
        write_file(run.schedule, schedule_yaml(request.ladder.schedule).encode())
        request.record_choices()
        for job, number, log in _submitted(request, jobs, run):
            behind = f", after {job.after}" if job.after else ""
            machines_words = f"{counted(job.nodes, 'machine')} x {machines.devices}"
            screen.message(f"job {number}: {job.name} ({machines_words}{behind}); log: {log}")


def _submitted(request: LadderRequest, jobs: list[Job], run: RunPaths) -> list[tuple[Job, str, Path]]:
    """Submits `jobs` and returns each with its id and log."""
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    ids: dict[str, str] = {}
    logs: list[Path] = []
    try:
        for job in jobs:
            executor = job_executor(job, run.jobs_folder, ids.get(job.after or ""))
            with redirect_stderr(StringIO()):  # submitit prints sbatch's message, and raises it too
                submitted = executor.submit(JobPart(request, job.request.name, job.last_stage))
            ids[job.name] = submitted.job_id
            logs.append(submitted.paths.stdout)
            write_file(run.jobs, (json.dumps(ids, indent=1) + "\n").encode())
    except (FailedJobError, FailedSubmissionError) as error:
        if ids:
            subprocess.run(["scancel", *ids.values()], capture_output=True, check=False)
        said = (str(error).strip() or type(error).__name__).splitlines()[-1]
        raise RunFailed(
            f"sbatch rejected the job {job.name}: {said}; `sinfo` shows whether SLURM answers here, and its partitions"
        ) from None
    return list(zip(jobs, ids.values(), logs, strict=True))


def _check_no_jobs(run: RunPaths) -> None:
    """Raises AlreadySubmitted if jobs that were submitted earlier are queued or running."""
    if not run.jobs.exists():
        return
    path = run.jobs
    try:
        names = {str(number): str(name) for name, number in json.loads(path.read_bytes()).items()}
    except (ValueError, AttributeError, RecursionError) as error:
        raise RunError(
            f"{path}, which lists the jobs of this run, cannot be read: {error}; check with squeue that none of them "
            "is queued or running, then move the file away"
        ) from None
    living = job_states(list(names))
    if living:
        words = ", ".join(f"{number} ({names.get(number, 'another')}, {state})" for number, state in living.items())
        raise AlreadySubmitted(
            f"this run already has jobs: {words}; wait for them, or cancel them first: scancel {' '.join(living)}"
        )
