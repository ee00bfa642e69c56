"""Starts workers on the machines of a SLURM job with srun, and queries the queue for job states."""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from growctl.launch.machines import Launch, LaunchError, need_programs, plain_path
from growctl.schedule.launch_block import LaunchBlock
from model.errors import Failure
from stages.process.lifeline import VARIABLE
from stages.stage_dir import StagePaths

PROGRAMS = dict.fromkeys(
    ("sbatch", "squeue", "srun", "scontrol", "scancel"),
    "run this on a login node of the cluster, or set launch.cluster=local",
)
FIRST_PORT, NUM_PORTS = 15_000, 15_000
"""Ports on which a job's ranks meet, below Linux's ephemeral ports; the job's id selects one of them."""


@dataclass(frozen=True)
class SlurmMachines:
    """The machines of a SLURM job."""

    devices: int
    cpus_per_device: int
    environment: Mapping[str, str]
    """`launch.environment`."""

    address: str = "FIRST-HOST-OF-THE-JOB"
    port: str = f"{FIRST_PORT}+JOB-ID%{NUM_PORTS}"

    @classmethod
    def of(cls, launch: LaunchBlock) -> "SlurmMachines":
        """The machines that `launch` describes; inside a job, that job's machines."""
        if launch.devices == "auto":
            raise LaunchError(
                "launch.devices = 'auto': a login node cannot count the devices of other machines; with "
                "launch.cluster = 'slurm' set the number of devices to use on each machine"
            )
        described = launch.devices, launch.slurm.cpus_per_device, launch.environment
        if os.environ.get("SUBMITIT_EXECUTOR") != "slurm":
            return cls(*described)
        from submitit.slurm.slurm import SlurmJobEnvironment

        job = SlurmJobEnvironment()
        return cls(*described, job.hostnames[0], str(FIRST_PORT + int(job.raw_job_id) % NUM_PORTS))

    def check(self, runs_dir: Path) -> None:
        """Raises LaunchError if SLURM's programs are missing, or SLURM would interpret characters of `runs_dir`."""
        need_programs(PROGRAMS, "launch.cluster = 'slurm'")
        plain_path(runs_dir, "the runs directory")

    def launch(self, spec: Path, nodes: int, attempt: int) -> Launch:
        """Starts srun with one task per device on the first `nodes` machines of the job."""
        alive = StagePaths(spec.absolute().parent).lifeline(attempt)
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
    """{id: state, such as PENDING or RUNNING} of the jobs that are queued or running; 12_3 is a task of an array.

    Raises Failure if squeue fails.
    """
    if not ids:
        return {}
    command: list[str] = ["squeue", "--noheader", "--array", "--format=%i %T", f"--jobs={','.join(ids)}"]
    result: subprocess.CompletedProcess[Any] = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode and "Invalid job id" in result.stderr:
        return {}
    if result.returncode:
        raise Failure(f"squeue failed: {result.stderr.strip() or f'exit code {result.returncode}'}")
    return dict(line.split(maxsplit=1) for line in result.stdout.splitlines() if line.strip())
