"""What happens inside a SLURM job: the ordinary runner on the job's first machine, its workers started by srun.

Jobs are submitted through submitit (growctl/submit.py), whose protocol they follow: shortly before its time is over the
job is warned by SIGUSR2, stops its workers, writes itself down and is put into the queue again. What it then does is
what running again always does: it reads what is on disk.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from growctl.launch import Launch, LaunchError, need_programs, plain_path
from growctl.launch_schema import LaunchBlock
from stages.lifeline import VARIABLE

if TYPE_CHECKING:
    from submitit.core.utils import DelayedSubmission

    from growctl.run_requests import LadderRequest

PROGRAMS = dict.fromkeys(
    ("sbatch", "squeue", "srun", "scontrol", "scancel"),
    "run this on a login node of the cluster, or set launch.cluster=local",
)
FIRST_PORT, NUM_PORTS = 15_000, 15_000
"""Ports that jobs meet on, below those that Linux hands out; jobs on one machine differ by their ids."""


@dataclass(frozen=True)
class SlurmMachines:
    """The machines of a job."""

    devices: int
    cpus_per_device: int
    environment: Mapping[str, str]
    """`launch.environment`."""

    address: str = "FIRST-HOST-OF-THE-JOB"
    port: str = f"{FIRST_PORT}+JOB-ID%{NUM_PORTS}"

    @classmethod
    def of(cls, launch: LaunchBlock) -> "SlurmMachines":
        """The machines that `launch` describes, and where this process is a job's, that job's."""
        if launch.devices == "auto":
            raise LaunchError(
                "launch.devices = 'auto': a login node cannot know; with launch.cluster = 'slurm' say how many devices "
                "to use on each machine"
            )
        described = launch.devices, launch.slurm.cpus_per_device, launch.environment
        if os.environ.get("SUBMITIT_EXECUTOR") != "slurm":
            return cls(*described)
        from submitit.slurm.slurm import SlurmJobEnvironment

        job = SlurmJobEnvironment()
        return cls(*described, job.hostnames[0], str(FIRST_PORT + int(job.raw_job_id) % NUM_PORTS))

    def check(self, runs_dir: Path) -> None:
        """LaunchError where SLURM's programs are missing, or `runs_dir` has a name that it would not take literally."""
        need_programs(PROGRAMS, "launch.cluster = 'slurm'")
        plain_path(runs_dir, "the runs directory")

    def launch(self, spec: Path, nodes: int, attempt: int) -> Launch:
        """srun, a task a device, on the first `nodes` machines of the job."""
        alive = spec.absolute().parent / f".lifeline.{attempt}"
        return Launch(
            command=[
                *("srun", f"--nodes={nodes}", f"--ntasks={nodes * self.devices}"),
                *(f"--ntasks-per-node={self.devices}", f"--cpus-per-task={self.cpus_per_device}"),
                *("--kill-on-bad-exit=1", "--export=ALL", "--input=none"),
                *(sys.executable, "-u", "-m", "stages.train", str(spec.absolute())),
            ],
            environment={
                "PYTHONSAFEPATH": "1",
                VARIABLE: str(alive),
                "MASTER_ADDR": self.address,
                "MASTER_PORT": self.port,
                "OMP_NUM_THREADS": str(self.cpus_per_device),
                **self.environment,
            },
            lifeline=alive,
        )


class JobPart:
    """What one job does: a run, or its stages up to one of them. submitit pickles it into the run's directory."""

    def __init__(self, request: "LadderRequest", name: str, last_stage: int | None) -> None:
        """The run `name`, the ladder itself or one of its controls, up to the stage of that index."""
        self.name = name
        self.last_stage = last_stage
        self.ladder = request.ladder.name
        self.label = request.ladder.label
        self.runs_dir = str(request.runs_dir.absolute())
        self.schedule = json.dumps(request.ladder.schedule.model_dump(mode="json"))

    def __call__(self) -> None:
        """Runs the part. Ends the process where it fails, is warned or terminated."""
        requeue = signal.getsignal(signal.SIGUSR2)
        assert callable(requeue), "submitit waits for another signal than SIGUSR2"
        for number in _STOPS:
            signal.signal(number, _stopped)
        try:
            try:
                self._run()
            except _Stopped as stop:
                # Everything is closed, no worker is left. submitit counts, writes `checkpoint()` down and requeues.
                if stop.number == signal.SIGTERM and not _runs_on():
                    sys.exit(128 + signal.SIGTERM)
                requeue(signal.SIGUSR2, None)
        except (ValueError, RuntimeError, OSError, subprocess.SubprocessError) as error:
            print(f"growctl: {error}", file=sys.stderr)
            sys.exit(2 if isinstance(error, ValueError) else 1)

    def checkpoint(self) -> "DelayedSubmission":
        """What the job does when it is started again: the same."""
        from submitit.core.utils import DelayedSubmission

        return DelayedSubmission(self)

    def _run(self) -> None:
        from rich.console import Console

        from growctl.run_requests import LadderRequest
        from growctl.runner import run_part
        from growctl.schedule import parse_schedule
        from growctl.screen import Screen

        schedule = parse_schedule(json.loads(self.schedule), label=self.label, default_name=self.ladder)
        request = LadderRequest.of(schedule, self.label, Path(self.runs_dir), self.ladder, with_controls=True)
        run_part(request, self.name, self.last_stage, Screen(Console()))


_STOPS = (signal.SIGUSR2, signal.SIGTERM)


class _Stopped(BaseException):
    """The job was warned or terminated; not an Exception, so that nothing on the way takes it for a failure."""

    def __init__(self, number: int) -> None:
        self.number = number


def _stopped(number: int, frame: FrameType | None) -> NoReturn:
    for stop in _STOPS:
        signal.signal(stop, signal.SIG_IGN)
    raise _Stopped(number)


def _runs_on() -> bool:
    """Whether SLURM means to keep this job, which it terminates to make room for another, or takes it away for good."""
    return job_states([os.environ["SLURM_JOB_ID"]]) == {os.environ["SLURM_JOB_ID"]: "RUNNING"}


def job_states(ids: list[str]) -> dict[str, str]:
    """{id: state, as PENDING or RUNNING} of those jobs that are queued or running.

    Raises RuntimeError where squeue cannot say.
    """
    if not ids:
        return {}
    command: list[str] = ["squeue", "--noheader", "--format=%i %T", f"--jobs={','.join(ids)}"]
    result: subprocess.CompletedProcess[Any] = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode and "Invalid job id" in result.stderr:
        return {}
    if result.returncode:
        raise RuntimeError(f"squeue failed: {result.stderr.strip() or f'exit code {result.returncode}'}")
    return dict(line.split(maxsplit=1) for line in result.stdout.splitlines() if line.strip())
