"""Submits a run to SLURM as jobs, through submitit.

`launch.slurm.job: ladder` submits one job per run, with as many machines as its largest stage needs. `stage` submits
one job per stage and its release, with that stage's machines; each job waits for the one before. Each control is a
separate run. It waits for the ladder, because its budget may depend on it and because users want the ladder first;
controls do not wait for each other. Finished stages get no job. All of them together are the run's chain of jobs.

Chains of several runs that ask SLURM for the same are submitted as job arrays, one for each place in the chain
(growctl/queue/arrays.py): task i of an array is the job of the chain number i.

The first job prepares the dataset unless it exists already. This can take hours, which login nodes do not allow.
`growctl prepare` prepares it beforehand, in a job without devices.
"""

import json
import math
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
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
from growctl.run.requests import LadderRequest, RunFailed, RunRequest, left_to_train, schedule_yaml
from growctl.run.screen import Screen
from growctl.runs.directory import RunError
from growctl.runs.lock import hold
from growctl.runs_dir import RunPaths
from growctl.schedule.launch_block import LaunchBlock
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


@dataclass(frozen=True)
class Chain:
    """The jobs for the unfinished stages of a ladder and its controls."""

    request: LadderRequest
    jobs: tuple[Job, ...]

    @property
    def name(self) -> str:
        """The ladder's name."""
        return self.request.ladder.name

    @property
    def run(self) -> RunPaths:
        """The ladder's paths, absolute. They hold scripts, pickles and logs of all jobs, also those of the controls."""
        return RunPaths(plain_path(self.request.directory(self.request.ladder), "the run's directory"))

    @classmethod
    def of(cls, request: LadderRequest) -> "Chain":
        """The chain of a ladder and its controls. Raises RunError and LaunchError if it cannot be submitted anywhere.

        Writes nothing, and does not ask SLURM.
        """
        check_slurm(request.ladder.schedule.launch)
        requests = request.checked(machines_of(request.ladder.schedule))
        return cls(request, tuple(plan_jobs(request, requests)))

    def check_queue(self) -> None:
        """Raises LaunchError if SLURM cannot be used here, AlreadySubmitted if earlier jobs are queued or running."""
        machines_of(self.request.ladder.schedule).check(self.request.runs_dir)
        _check_no_jobs(self.run)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Writes what the jobs read, and keeps others from submitting any for this ladder.

        Raises RunError if a growctl runs it, AlreadySubmitted if it has jobs by now.
        """
        with hold(self.request.directory(self.request.ladder)):
            pass  # checks that no growctl runs it now; the first job needs the lock as soon as it is submitted
        self.run.jobs_folder.mkdir(exist_ok=True)
        with hold(self.run.jobs_folder):
            _check_no_jobs(self.run)
            write_file(self.run.schedule, schedule_yaml(self.request.ladder.schedule).encode())
            self.request.record_choices()
            yield


@dataclass(frozen=True)
class Submitted:
    """A job that SLURM has accepted, or an array of jobs."""

    number: str
    """Its id; of an array, the id without a task's number."""

    job: Job
    logs: tuple[Path, ...]
    """The log of each task; of one if it is no array."""


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


def job_executor(job: Job, folder: Path, dependency: str | None, tasks: int = 1) -> Any:
    """submitit's executor with the options of `job`, for files and logs in `folder`. Writes nothing.

    `dependency` is the id of the job that must succeed first. With several `tasks`, the job is an array; each of its
    tasks waits for the task of the same number.
    """
    launch = job.request.schedule.launch
    slurm = launch.slurm
    return slurm_executor(
        launch,
        folder,
        job_name=job.name,
        nodes=job.nodes,
        ntasks_per_node=launch.devices,
        cpus_per_task=slurm.cpus_per_device,
        gpus_per_node=launch.devices if slurm.gpus else None,
        mem="0" if slurm.memory is None else f"{math.ceil(slurm.memory / 2**20)}M",  # 0: all of it
        dependency=f"{'aftercorr' if tasks > 1 else 'afterok'}:{dependency}" if dependency else None,
        array_parallelism=slurm.array_limit or tasks,
    )


def slurm_executor(launch: LaunchBlock, folder: Path, **parameters: Any) -> Any:
    """submitit's executor with the options that all jobs of `launch` share, and `parameters`. Writes nothing."""
    from submitit.slurm.slurm import SlurmExecutor

    class Executor(SlurmExecutor):
        """An executor that can also be created on a machine without SLURM, to show its script."""

        @classmethod
        def affinity(cls) -> int:
            return 1

    slurm = launch.slurm
    # `exec` replaces the shell by Python, so that `--signal=B:` warns Python. Without `B:`, SLURM would warn only the
    # workers, which cannot act on it.
    executor = Executor(folder, max_num_timeout=slurm.max_requeues, python=f"exec {shlex.quote(sys.executable)}")
    executor.update_parameters(
        time=math.ceil(slurm.time_limit / 60),
        partition=slurm.partition,
        account=slurm.account,
        qos=slurm.qos,
        constraint=slurm.constraint,
        setup=["export PYTHONSAFEPATH=1 SUBMITIT_PREEMPT_SIGNAL=USR2", *slurm.setup],
        stderr_to_stdout=True,
        use_srun=False,
        wckey=None,
        additional_parameters={
            "signal": f"B:USR2@{slurm.warn_before}",
            "requeue": True,
            **({"kill-on-invalid-dep": "yes"} if parameters.get("dependency") else {}),
            **{name: value for name, value in slurm.options.items() if value is not False},
        },
        **parameters,
    )
    return executor


def script(executor: Any, tasks: int = 1) -> str:
    """The script that `executor` gives to sbatch, for a job, or for an array of `tasks`."""
    if tasks > 1:
        executor.parameters["map_count"] = tasks
    text: str = executor._make_submission_file_text(executor._submitit_command_str, "")
    executor.parameters.pop("map_count", None)  # submitit adds it itself when it submits
    return text


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


def submit(request: LadderRequest, screen: Screen) -> None:
    """Submits jobs for the unfinished stages of a ladder and its controls, and prints a line for each.

    Raises RunError and LaunchError before anything is written, for example if jobs of this run are already queued or
    running; RunFailed if SLURM rejects a job, after cancelling the jobs submitted before it.
    """
    chain = Chain.of(request)
    chain.check_queue()
    if not chain.jobs:
        screen.message(nothing_to_submit(request))
        return
    with chain.held():
        submit_chain(chain, screen)


def submit_chain(chain: Chain, screen: Screen) -> None:
    """Submits a chain that is held and prints a line for each job. Raises RunFailed if SLURM rejects one."""
    for each in submit_jobs(chain.jobs, [chain], chain.run.jobs_folder):
        behind = f", after {each.job.after}" if each.job.after else ""
        screen.message(f"job {each.number}: {each.job.name} ({machines_words(each.job)}{behind}); log: {each.logs[0]}")


def machines_words(job: Job) -> str:
    """The machines of a job: `2 machines x 8`."""
    return f"{counted(job.nodes, 'machine')} x {job.request.schedule.launch.devices}"


def submit_jobs(jobs: Sequence[Job], chains: Sequence[Chain], folder: Path) -> list[Submitted]:
    """Submits `jobs`, which describe every place of `chains`, each as an array with a task for each of the chains.

    The only one of `chains` gets ordinary jobs. Scripts, pickles and logs go to `folder`. Raises RunFailed if SLURM
    rejects a job. After that or any other error, those submitted before are cancelled.
    """
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    done: dict[str, Submitted] = {}
    ids: list[dict[str, str]] = [{} for _ in chains]
    try:
        for place, job in enumerate(jobs):
            before = done[job.after].number if job.after else None
            executor = job_executor(job, folder, before, len(chains))
            own = [chain.jobs[place] for chain in chains]
            parts = [
                JobPart(chain.request, each.request.name, each.last_stage)
                for chain, each in zip(chains, own, strict=True)
            ]
            with redirect_stderr(StringIO()):  # submitit prints sbatch's message, and raises it too
                tasks = executor.submit_array(parts)
            logs = tuple(task.paths.stdout for task in tasks)
            done[job.name] = Submitted(tasks[0].job_id.partition("_")[0], job, logs)
            for chain, known, each, task in zip(chains, ids, own, tasks, strict=True):
                known[each.name] = task.job_id
                write_file(chain.run.jobs, (json.dumps(known, indent=1) + "\n").encode())
    except BaseException as error:
        if done:
            cancelled = [each.number for each in done.values()]
            subprocess.run(["scancel", *cancelled], capture_output=True, check=False)
        if not isinstance(error, FailedJobError | FailedSubmissionError):
            raise
        said = (str(error).strip() or type(error).__name__).splitlines()[-1]
        raise RunFailed(
            f"sbatch rejected the job {job.name}: {said}; `sinfo` shows whether SLURM answers here, and its partitions"
        ) from None
    return list(done.values())


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
