"""Runs as SLURM jobs: submits them through submitit, and is what each job runs.

`launch.slurm.job: ladder` submits one job per run, with as many machines as its largest stage needs. `stage` submits
one job per stage and its release, with that stage's machines; each job waits for the one before. Each control is a
separate run. It waits for the ladder, because its budget may depend on it and because users want the ladder first.
A control whose peak is tuned also waits for the runs that tune it. Finished stages get no job.

A job is the ordinary runner on its first machine, with workers started by srun. Shortly before the time limit, SLURM
warns the job with SIGUSR2. The job makes its workers save and exit, saves its own state and is requeued. When it starts
again, it resumes from the files on disk, like any other run.

The first job prepares the dataset unless it exists already. This can take hours, which login nodes do not allow.
`growctl prepare` prepares it beforehand, in a job without devices.
"""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from growctl.bugs import report_bug
from growctl.ladder.stage_plans import StagePlan
from growctl.launch.machines import plain_path
from growctl.launch.resolve import machines_of
from growctl.launch.slurm import cancel, check_slurm, job_states, slurm_executor, submit_array
from growctl.run import signals
from growctl.run.requests import LadderRequest, RunRequest, schedule_yaml
from growctl.run.screen import Screen
from growctl.runs.directory import RunError, read_jobs
from growctl.runs.lock import hold
from growctl.runs_dir import RunPaths
from growctl.text.escaping import say
from model.errors import Failure, UserError
from stages.checkpoint.files import write_file
from stages.counted import counted

if TYPE_CHECKING:
    from submitit.core.utils import DelayedSubmission

ASK_AGAIN_SECONDS = (1.0, 5.0, 10.0)


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

    after: tuple[str, ...]
    """The names of the jobs that must succeed first."""

    def executor(self, folder: Path, dependency: str | None) -> Any:
        """submitit's executor of this job, with sbatch's `dependency`."""
        launch = self.request.schedule.launch
        return slurm_executor(
            launch,
            folder,
            "0",  # all of a machine's memory
            job_name=self.name,
            nodes=self.nodes,
            ntasks_per_node=launch.devices,
            gpus_per_node=launch.devices if launch.slurm.gpus else None,
            dependency=dependency,
        )


def jobs_of(request: LadderRequest) -> list[Job]:
    """The jobs for the unfinished stages of a ladder and its controls.

    Raises RunError and LaunchError if they cannot be submitted anywhere. Writes nothing, and does not ask SLURM.
    """
    check_slurm(request.ladder.schedule.launch)
    return plan_jobs(request, request.checked(machines_of(request.ladder.schedule)))


def plan_jobs(request: LadderRequest, requests: Sequence[RunRequest]) -> list[Job]:
    """The jobs for the unfinished stages of the ladder and its controls (`requests`, in that order)."""
    jobs: list[Job] = []
    ends: dict[str, str] = {}  # the last job of each run
    for run in requests:
        launch = run.schedule.launch
        by_stage = launch.slurm.job == "stage"
        after = tuple(ends[name] for name in run.awaits or (run.control_of,) if name in ends)
        for _, plans in groupby(request.left(run), key=lambda plan: plan.index if by_stage else None):
            stages = tuple(plans)
            name = f"{run.name}.{stages[0].branch_of or stages[0].name}" if by_stage else run.name
            nodes = max(launch.nodes_of(stage.index) for stage in stages)
            last = stages[-1].index if by_stage else request.last_stage
            jobs.append(Job(name, run, stages, nodes, last, after))
            ends[run.name], after = name, (name,)
    return jobs


def jobs_folder(request: LadderRequest) -> Path:
    """The ladder's folder, absolute, with scripts, pickles and logs of all jobs, also those of the controls."""
    return plain_path(RunPaths(request.directory(request.ladder)).jobs_folder, "the run's directory")


def submit(request: LadderRequest, screen: Screen, behind: Sequence[str] = ()) -> list[str]:
    """Submits jobs for the unfinished stages of a ladder and its controls, prints a line for each, returns their ids.

    `behind`: ids of jobs that must end first, whether or not they succeed. Raises RunError and LaunchError before
    anything is written, for example if jobs of this run are already queued or running; Failure if SLURM rejects a job,
    after cancelling the jobs submitted before it.
    """
    jobs, ladder, folder = jobs_of(request), request.directory(request.ladder), jobs_folder(request)
    run = RunPaths(ladder)
    machines_of(request.ladder.schedule).check(request.runs_dir)
    _check_no_jobs(run)
    if not jobs:
        screen.message(nothing_to_submit(request))
        return []
    with hold(ladder):
        pass  # checks that no growctl runs it now; the first job needs the lock as soon as it is submitted
    folder.mkdir(exist_ok=True)
    ids: dict[str, str] = {}
    with hold(folder):
        _check_no_jobs(run)
        write_file(run.schedule, schedule_yaml(request.ladder.schedule).encode())
        request.record_choices()
        try:
            for job in jobs:
                first = f"afterany:{':'.join(behind)}" if behind else None
                afterok = ":".join(["afterok", *(ids[name] for name in job.after)])
                executor = job.executor(folder, afterok if job.after else first)
                part = JobPart(request, job.request.name, job.last_stage)
                [submitted] = submit_array(executor, [part], f"the job {job.name}")
                ids[job.name] = submitted.job_id
                write_file(run.jobs, (json.dumps(ids, indent=1) + "\n").encode())
                machines = f"{counted(job.nodes, 'machine')} x {job.request.schedule.launch.devices}"
                after = f", behind {', '.join(behind)}" if behind else ""
                after = f", after {', '.join(job.after)}" if job.after else after
                screen.message(f"job {ids[job.name]}: {job.name} ({machines}{after}); log: {submitted.paths.stdout}")
        except BaseException:
            cancel(list(ids.values()))
            raise
    return list(ids.values())


def nothing_to_submit(request: LadderRequest) -> str:
    """The message if every stage that `request` includes is done."""
    stages, last = request.ladder.schedule.stages, request.last_stage
    up_to = "" if last is None else f" up to stage {stages[last].name}"
    return f"{request.ladder.name}: done{up_to}; there is nothing to submit"


def _check_no_jobs(run: RunPaths) -> None:
    """Raises AlreadySubmitted if jobs that were submitted earlier are queued or running."""
    names = {number: name for name, number in read_jobs(run).items()}
    if living := job_states(list(names)):
        words = ", ".join(f"{number} ({names.get(number, 'another')}, {state})" for number, state in living.items())
        raise AlreadySubmitted(
            f"this run already has jobs: {words}; wait for them, or cancel them first: scancel {' '.join(living)}"
        )


class JobPart:
    """The work of one job: a whole run, or its stages up to one of them. submitit pickles it into the run directory."""

    def __init__(self, request: LadderRequest, name: str, last_stage: int | None) -> None:
        """The run `name`, the ladder or one of its controls, up to the stage with index `last_stage`; None: all."""
        self.request = replace(
            request,
            runs_dir=request.runs_dir.absolute(),
            sources=tuple(source.absolute() for source in request.sources),
            wants_controls=True,
            last_stage=None,
        )
        self.name = name
        self.last_stage = last_stage

    def __call__(self) -> None:
        """Runs the part. Exits the process if it fails, or if SLURM warns or terminates it."""
        requeue = signal.getsignal(signal.SIGUSR2)
        assert callable(requeue), "submitit waits for another signal than SIGUSR2"
        signals.install_handlers((signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2))
        try:
            try:
                self._run()
            except signals.Stopped as stop:
                # All files are closed, and no worker is left. submitit counts the time-outs, pickles `checkpoint()`
                # and requeues the job.
                for number in signals.STOPS:
                    signal.signal(number, signal.SIG_IGN)
                if stop.number == signal.SIGTERM and not _runs_on():
                    sys.exit(stop.exit_code)
                self._requeue(requeue)
        except (UserError, Failure, OSError) as error:
            say(f"growctl: {error}", error=True)
            sys.exit(2 if isinstance(error, UserError) else 1)
        except Exception as error:
            report_bug(error, self.request.runs_dir, print_traceback=True)  # into the job's log
            sys.exit(1)

    def checkpoint(self) -> "DelayedSubmission":
        """What submitit starts when the job is requeued: the same part."""
        from submitit.core.utils import DelayedSubmission

        return DelayedSubmission(self)

    def _run(self) -> None:
        from growctl.run.runner import run
        from growctl.text.console import Terminal

        run(self.request, Screen(Terminal(), timestamps=True), self.name, self.last_stage)

    def _requeue(self, requeue: Any) -> None:
        from submitit.core.utils import UncompletedJobError

        try:
            requeue(signal.SIGUSR2, None)
        except UncompletedJobError:  # submitit raises it after the last time-out that it may follow
            most = self.request.ladder.schedule.launch.slurm.max_requeues
            reason = f"this job has reached its time limit and was not queued again: launch.slurm.max_requeues = {most}"
            raise Failure(f"{reason}; submit the run again to resume") from None
        except subprocess.SubprocessError as error:  # scontrol failed, or a busy controller did not answer
            said = str(error).removesuffix(".")
            raise Failure(f"SLURM could not requeue this job: {said}; submit the run again to resume") from error


def _runs_on() -> bool:
    """Whether SLURM will run this job again (it was pre-empted) or not (it was cancelled).

    Asks a busy controller again, for as long as SLURM usually waits before it kills a job.
    """
    from submitit.slurm.slurm import SlurmJobEnvironment

    own = SlurmJobEnvironment().job_id
    for pause in ASK_AGAIN_SECONDS:
        with suppress(Failure):
            return job_states([own]) == {own: "RUNNING"}
        time.sleep(pause)
    return job_states([own]) == {own: "RUNNING"}
