"""Submits runs to SLURM as jobs; each runs a JobPart (growctl/run/job_part.py).

`launch.slurm.job: ladder` submits one job per run, with as many machines as its largest stage needs. `stage` submits
one job per stage and its release, with that stage's machines; each job waits for the one before. Each control is a
separate run. It waits for the ladder, because its budget may depend on it and because users want the ladder first;
controls do not wait for each other. Finished stages get no job. All of them together are the run's chain of jobs.

Runs of a set (`run --seeds`, `sweep`) whose chains ask SLURM for the same share an array for each place in the chain:
task i is the job of run number i, and waits for task i of an earlier array (`aftercorr`), so that each run advances,
fails and is queued again by itself.

The first job prepares the dataset unless it exists already. This can take hours, which login nodes do not allow.
`growctl prepare` prepares it beforehand, in a job without devices.
"""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

from growctl.ladder.stage_plans import StagePlan
from growctl.launch.machines import plain_path
from growctl.launch.resolve import machines_of
from growctl.launch.slurm import array_number, cancel, check_slurm, job_states, script, slurm_executor, submit_array
from growctl.run.job_part import JobPart
from growctl.run.requests import LadderRequest, RunRequest, left_to_train, schedule_yaml
from growctl.run.screen import Screen
from growctl.runs.directory import RunError
from growctl.runs.lock import hold
from growctl.runs_dir import RunPaths, RunsPaths
from model.errors import Failure, UserError
from stages.checkpoint.files import write_file
from stages.counted import counted

LARGEST_ARRAY = 500
"""The most tasks of one array. SLURM allows 1000 unless the cluster's MaxArraySize says otherwise, and a lock file is
open for each while they are submitted."""


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

    def script(self, folder: Path, tasks: int) -> str:
        """What sbatch gets for this job, or an array of it. Only sbatch knows the ids of jobs, so placeholders stand
        for them."""
        return script(self.executor(folder, f"ID-OF-{self.after}" if self.after else None, tasks), tasks)

    def executor(self, folder: Path, dependency: str | None, tasks: int) -> Any:
        """submitit's executor of this job; `dependency` is the id of the job that must succeed first.

        With several `tasks`, the job is an array; each of its tasks waits for the task of the same number.
        """
        launch = self.request.schedule.launch
        return slurm_executor(
            launch,
            folder,
            "0",  # all of a machine's memory
            tasks,
            job_name=self.name,
            nodes=self.nodes,
            ntasks_per_node=launch.devices,
            gpus_per_node=launch.devices if launch.slurm.gpus else None,
            dependency=f"{'aftercorr' if tasks > 1 else 'afterok'}:{dependency}" if dependency else None,
        )


@dataclass(frozen=True)
class Chain:
    """The jobs for the unfinished stages of a ladder and its controls."""

    request: LadderRequest
    jobs: tuple[Job, ...]

    @classmethod
    def of(cls, request: LadderRequest) -> "Chain":
        """The chain of a ladder and its controls. Raises RunError and LaunchError if it cannot be submitted anywhere.

        Writes nothing, and does not ask SLURM.
        """
        check_slurm(request.ladder.schedule.launch)
        requests = request.checked(machines_of(request.ladder.schedule))
        return cls(request, tuple(plan_jobs(request, requests)))

    @property
    def name(self) -> str:
        """The ladder's name."""
        return self.request.ladder.name

    @property
    def run(self) -> RunPaths:
        """The ladder's paths, absolute. They hold scripts, pickles and logs of all jobs, also those of the controls."""
        return RunPaths(plain_path(self.request.directory(self.request.ladder), "the run's directory"))

    @property
    def group(self) -> str:
        """The name of the set that the run belongs to."""
        run_set = self.request.ladder.run_set
        assert run_set is not None, f"{self.name} belongs to no set"
        return run_set.group

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
class Bundle:
    """Chains of different runs that ask SLURM for the same jobs, in the order of the array's tasks; at least one."""

    chains: tuple[Chain, ...]

    @property
    def tasks(self) -> int:
        """The number of tasks of each array. A single one is no array."""
        return len(self.chains)

    @cached_property
    def jobs(self) -> tuple[Job, ...]:
        """A job for each place in the chain, called after the set if there are several runs."""
        return self.chains[0].jobs if self.tasks == 1 else _jobs_of_set(self.chains[0])

    @property
    def folder(self) -> Path:
        """The folder of scripts, pickles and logs: of the run, or of the set's arrays."""
        return self.chains[0].run.jobs_folder if self.tasks == 1 else _arrays_folder(self.chains[0])

    @property
    def names(self) -> list[str]:
        """The names of the runs."""
        return [chain.name for chain in self.chains]


def plan_jobs(request: LadderRequest, requests: Sequence[RunRequest]) -> list[Job]:
    """The jobs for the unfinished stages of the ladder and its controls (`requests`, in that order)."""
    jobs: list[Job] = []
    ladder_end = None
    for run in requests:
        launch = run.schedule.launch
        by_stage = launch.slurm.job == "stage"
        unfinished = left_to_train(run.schedule, request.directory(run))
        left = [plan for plan in unfinished if request.trains(plan.index)]
        after = ladder_end
        for _, plans in groupby(left, key=lambda plan: plan.index if by_stage else None):
            stages = tuple(plans)
            name = f"{run.name}.{stages[0].branch_of or stages[0].name}" if by_stage else run.name
            nodes = max(launch.nodes_of(stage.index) for stage in stages)
            last = stages[-1].index if by_stage else request.last_stage
            jobs.append(Job(name, run, stages, nodes, last, after))
            after = name
        if run.control is None:
            ladder_end = after
    return jobs


def bundles(chains: Sequence[Chain]) -> list[Bundle]:
    """`chains` of one set, by what they ask SLURM for, each bundle where its first one stands."""
    alike: dict[tuple[object, ...], list[Chain]] = {}
    for chain in chains:
        slurm = chain.request.ladder.schedule.launch.slurm
        scripts = [job.script(_arrays_folder(chain), tasks=2) for job in _jobs_of_set(chain)]
        alike.setdefault((slurm.max_requeues, slurm.array_limit, *scripts), []).append(chain)
    return [
        Bundle(tuple(members[start : start + LARGEST_ARRAY]))
        for members in alike.values()
        for start in range(0, len(members), LARGEST_ARRAY)
    ]


def submit(request: LadderRequest, screen: Screen) -> None:
    """Submits jobs for the unfinished stages of a ladder and its controls, and prints a line for each.

    Raises RunError and LaunchError before anything is written, for example if jobs of this run are already queued or
    running; Failure if SLURM rejects a job, after cancelling the jobs submitted before it.
    """
    chain = Chain.of(request)
    chain.check_queue()
    if not chain.jobs:
        screen.message(nothing_to_submit(request))
        return
    with chain.held():
        _submit(Bundle((chain,)), screen)


def submit_set(requests: Sequence[LadderRequest], screen: Screen) -> dict[str, str]:
    """Submits the jobs of runs of one set that are not finished; returns why some could not be submitted, by name.

    Runs whose jobs are queued or running are left out. If SLURM rejects a job, those submitted for the same runs are
    cancelled.
    """
    failures: dict[str, str] = {}

    def succeeds(names: Sequence[str], act: Callable[..., object], *arguments: object) -> bool:
        try:
            act(*arguments)
        except AlreadySubmitted as error:
            screen.message(f"{', '.join(names)}: {error}")
            return False
        except (UserError, Failure) as error:
            failures.update(dict.fromkeys(names, str(error)))
            screen.message(f"{', '.join(names)}: failed: {error}")
            return False
        return True

    chains: list[Chain] = []

    def plan(request: LadderRequest) -> None:
        chain = Chain.of(request)
        chain.check_queue()
        chains.append(chain)

    for request in requests:
        succeeds([request.ladder.name], plan, request)
    for bundle in bundles(chains):
        with ExitStack() as locks:
            held = [chain for chain in bundle.chains if succeeds([chain.name], locks.enter_context, chain.held())]
            if held:
                ready = Bundle(tuple(held))
                succeeds(ready.names, _submit, ready, screen)
    return failures


def nothing_to_submit(request: LadderRequest) -> str:
    """The message if every stage that `request` includes is done."""
    stages, last = request.ladder.schedule.stages, request.last_stage
    up_to = "" if last is None else f" up to stage {stages[last].name}"
    return f"{request.ladder.name}: done{up_to}; there is nothing to submit"


def _submit(bundle: Bundle, screen: Screen) -> None:
    """Submits chains that are held, and prints a line for each job or array.

    Raises Failure if SLURM rejects a job. After that or any other error, those submitted before are cancelled.
    """
    bundle.folder.mkdir(parents=True, exist_ok=True)
    numbers: dict[str, str] = {}
    ids: list[dict[str, str]] = [{} for _ in bundle.chains]
    lines = []
    try:
        for place, job in enumerate(bundle.jobs):
            executor = job.executor(bundle.folder, numbers[job.after] if job.after else None, bundle.tasks)
            own_jobs = [chain.jobs[place] for chain in bundle.chains]
            parts = [
                JobPart(chain.request, own.request.name, own.last_stage)
                for chain, own in zip(bundle.chains, own_jobs, strict=True)
            ]
            tasks = submit_array(executor, parts, f"the job {job.name}")
            numbers[job.name] = array_number(tasks[0])
            for chain, chain_ids, own, task in zip(bundle.chains, ids, own_jobs, tasks, strict=True):
                chain_ids[own.name] = task.job_id
                write_file(chain.run.jobs, (json.dumps(chain_ids, indent=1) + "\n").encode())
                if bundle.tasks > 1:
                    _link(chain.run, task.paths.stdout)
            lines.append(_submitted_line(job, numbers[job.name], bundle.tasks, tasks[0].paths.stdout))
    except BaseException:
        cancel(list(numbers.values()))
        raise
    if bundle.tasks > 1:
        screen.message(f"{bundle.tasks} runs as job arrays, task 0 first: {', '.join(bundle.names)}")
    for text in lines:
        screen.message(text)


def _submitted_line(job: Job, number: str, tasks: int, log: Path) -> str:
    machines = f"{counted(job.nodes, 'machine')} x {job.request.schedule.launch.devices}"
    if tasks == 1:
        return f"job {number}: {job.name} ({machines}{f', after {job.after}' if job.after else ''}); log: {log}"
    limit = job.request.schedule.launch.slurm.array_limit
    at_once = f"; at most {limit} at once" if limit and limit < tasks else ""
    behind = f"; each after its job of {job.after}" if job.after else ""
    asks = f"{tasks} jobs, each on {machines}"
    return f"array {number}: {job.name} ({asks}{at_once}{behind}); logs: {number}_*.out in each run"


def _link(run: RunPaths, log: Path) -> None:
    """Makes the log of an array's task visible where the other logs of its run are."""
    link = run.jobs_folder / log.name
    link.unlink(missing_ok=True)
    link.symlink_to(os.path.relpath(log, link.parent))


def _jobs_of_set(chain: Chain) -> tuple[Job, ...]:
    """The jobs of `chain`, with the set's name in place of the ladder's."""

    def named(job: str) -> str:
        return chain.group + job.removeprefix(chain.name) if job.startswith(chain.name) else job

    return tuple(replace(job, name=named(job.name), after=job.after and named(job.after)) for job in chain.jobs)


def _arrays_folder(chain: Chain) -> Path:
    return plain_path(RunsPaths(chain.request.runs_dir).array_jobs(chain.group), "the runs directory")


def _check_no_jobs(run: RunPaths) -> None:
    """Raises AlreadySubmitted if jobs that were submitted earlier are queued or running."""
    if not run.jobs.exists():
        return
    try:
        names = {str(number): str(name) for name, number in json.loads(run.jobs.read_bytes()).items()}
    except (ValueError, AttributeError, RecursionError) as error:
        raise RunError(
            f"{run.jobs}, which lists the jobs of this run, cannot be read: {error}; check with squeue that none of "
            "them is queued or running, then move the file away"
        ) from None
    if living := job_states(list(names)):
        words = ", ".join(f"{number} ({names.get(number, 'another')}, {state})" for number, state in living.items())
        raise AlreadySubmitted(
            f"this run already has jobs: {words}; wait for them, or cancel them first: scancel {' '.join(living)}"
        )
