"""The machines of a SLURM job, on which srun starts the workers; and what the queue says of jobs."""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from growctl.launch.machines import Launch, LaunchError, need_programs, plain_path
from growctl.schema.launch_block import LaunchBlock
from model.errors import Failure
from stages.process.lifeline import VARIABLE

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
                *(sys.executable, "-u", "-m", "stages.train.worker", str(spec.absolute())),
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


def job_states(ids: list[str]) -> dict[str, str]:
    """{id: state, as PENDING or RUNNING} of those jobs that are queued or running.

    Raises Failure where squeue cannot say.
    """
    if not ids:
        return {}
    command: list[str] = ["squeue", "--noheader", "--format=%i %T", f"--jobs={','.join(ids)}"]
    result: subprocess.CompletedProcess[Any] = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode and "Invalid job id" in result.stderr:
        return {}
    if result.returncode:
        raise Failure(f"squeue failed: {result.stderr.strip() or f'exit code {result.returncode}'}")
    return dict(line.split(maxsplit=1) for line in result.stdout.splitlines() if line.strip())
