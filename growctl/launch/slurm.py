"""SLURM: workers on the machines of a job through srun, jobs submitted through submitit, and their states."""

import math
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any

from growctl.launch.machines import Launch, LaunchError, Machines, assumed_devices, need_programs, plain_path
from growctl.schedule.launch_block import LaunchBlock
from model.errors import Failure
from stages.process.lifeline import VARIABLE
from stages.stage_dir import StagePaths

FIRST_PORT, NUM_PORTS = 15_000, 15_000
"""Ports on which a job's ranks meet, below Linux's ephemeral ports; the job's id selects one of them."""

_LONGEST_WARNING = 65_535
"""SLURM's limit for the time between the warning and the time limit, in seconds."""


@dataclass(frozen=True)
class SlurmMachines(Machines):
    """The machines of a SLURM job."""

    cpus_per_device: int
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
        machines = cls(
            assumed_devices(launch, launch.devices), launch.slurm.cpus_per_device, environment=launch.environment
        )
        if os.environ.get("SUBMITIT_EXECUTOR") != "slurm":
            return machines
        from submitit.slurm.slurm import SlurmJobEnvironment

        job = SlurmJobEnvironment()
        return replace(machines, address=job.hostnames[0], port=str(FIRST_PORT + int(job.raw_job_id) % NUM_PORTS))

    def check(self, runs_dir: Path) -> None:
        """Raises LaunchError if SLURM's programs are missing, or SLURM would interpret characters of `runs_dir`."""
        need_slurm("launch.cluster = 'slurm'")
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


def need_slurm(setting: str) -> None:
    """Raises LaunchError if SLURM's programs are missing; `setting` is what needs them."""
    programs = ("sbatch", "squeue", "srun", "scontrol", "scancel")
    need_programs(programs, setting, "run this on a login node of the cluster, or set launch.cluster=local")


def check_slurm(launch: LaunchBlock) -> None:
    """Raises LaunchError if `launch.slurm` contains values that no job can have."""
    slurm = launch.slurm
    if not 0 < slurm.warn_before <= min(_LONGEST_WARNING, slurm.time_limit - 60):
        raise LaunchError(
            f"launch.slurm.warn_before = {slurm.warn_before} s: must be above 0, {_LONGEST_WARNING} at most, and leave "
            f"a minute or more of launch.slurm.time_limit, {slurm.time_limit} s"
        )
    named = {name: getattr(slurm, name) for name in ("partition", "account", "qos", "constraint")}
    for name, value in (named | {f"options.{name}": value for name, value in slurm.options.items()}).items():
        if isinstance(value, str) and not value.isprintable():
            raise LaunchError(f"launch.slurm.{name} = {value!r}: must be one line of text")


def slurm_executor(launch: LaunchBlock, folder: Path, memory: str | None, tasks: int = 1, **parameters: Any) -> Any:
    """submitit's executor of a job, or of an array of `tasks`, with the options of `launch` and further `parameters`.

    Its scripts, pickles and logs go to `folder`; it writes nothing by itself. `memory` is that of a job whose schedule
    sets none.
    """
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
        cpus_per_task=slurm.cpus_per_device,
        mem=memory if slurm.memory is None else f"{math.ceil(slurm.memory / 2**20)}M",
        array_parallelism=slurm.array_limit or tasks,
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


def script(executor: Any) -> str:
    """The script that `executor` gives to sbatch."""
    text: str = executor._make_submission_file_text(executor._submitit_command_str, "")
    return text


def submit_array(executor: Any, parts: Sequence[Callable[[], None]], what: str) -> list[Any]:
    """Submits `parts`, which are pickled, as the tasks of an array; a single one is an ordinary job.

    Raises Failure if sbatch rejects them; `what` names them in its message.
    """
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    try:
        with redirect_stderr(StringIO()):  # submitit prints sbatch's message, and raises it too
            jobs: list[Any] = executor.submit_array(parts)
    except (FailedJobError, FailedSubmissionError) as error:
        said = (str(error).strip() or type(error).__name__).splitlines()[-1]
        raise Failure(
            f"sbatch rejected {what}: {said}; `sinfo` shows whether SLURM answers here, and its partitions"
        ) from None
    return jobs


def cancel(numbers: Sequence[str]) -> None:
    """Cancels jobs and arrays; those that have ended stay as they are."""
    if numbers:
        subprocess.run(["scancel", *numbers], capture_output=True, check=False)


def job_states(ids: Sequence[str]) -> dict[str, str]:
    """{id: state, such as PENDING or RUNNING} of the jobs that are queued or running; 12_3 is a task of an array.

    Raises Failure if squeue fails.
    """
    if not ids:
        return {}
    command = ["squeue", "--noheader", "--array", "--format=%i %T", f"--jobs={','.join(ids)}"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode and "Invalid job id" in result.stderr:
        return {}
    if result.returncode:
        raise Failure(f"squeue failed: {result.stderr.strip() or f'exit code {result.returncode}'}")
    return dict(line.split(maxsplit=1) for line in result.stdout.splitlines() if line.strip())
