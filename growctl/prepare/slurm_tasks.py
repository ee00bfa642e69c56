"""Runs tasks as an array of SLURM jobs, through submitit, and waits for them.

datatrove has a SlurmPipelineExecutor. This one takes the partition, account, limits and further options of
`launch.slurm`, as `growctl run` does, requeues a job at its time limit, and reports a task's error.
"""

import json
import math
import subprocess
import time
from collections.abc import Callable
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

from growctl.launch.machines import need_programs, plain_path
from growctl.launch.slurm_machines import PROGRAMS, job_states
from growctl.prepare.far_tasks import TaskPart, new_folder, wait_for_records
from growctl.queue.submit import check_slurm, slurm_executor
from growctl.run.requests import RunFailed
from growctl.run.screen import Screen
from growctl.schedule.launch_block import LaunchBlock
from model.errors import Failure
from stages.checkpoint.files import write_file
from stages.corpus.tasks import Execute, Meter, Tasks
from stages.counted import counted
from stages.data.errors import DataError

MOST_JOBS = 1000
"""The most jobs of one array: SLURM's default MaxArraySize is 1001."""
ASK_SECONDS = 10.0
"""How often to ask SLURM which jobs are left."""


def run_on_slurm(launch: LaunchBlock, workers: int | None, datasets_dir: Path, screen: Screen) -> Execute:
    """Submits an array of up to `workers` jobs with the options of `launch.slurm`, without GPUs, and waits for it.

    If this process is interrupted, it cancels the jobs. If it is killed, they go on, and the next one replaces them.
    """
    check_slurm(launch)
    need_programs(PROGRAMS, "--executor slurm")
    plain_path(datasets_dir, "the datasets directory")

    def execute(tasks: Tasks[Any], meter: Meter) -> None:
        if tasks.shares_memory:
            raise DataError("--executor slurm: this data.source is in the memory of this process; use --executor local")
        folder = new_folder(tasks)
        _cancel_earlier(folder)
        pending = tasks.pending()
        count = min(workers or MOST_JOBS, MOST_JOBS, len(pending))
        threads = launch.slurm.cpus_per_device
        number = _submit(launch, folder, [TaskPart(tasks, pending[first::count], threads) for first in range(count)])
        where = f"{folder}/{number}_*_log.out"
        screen.message(f"array {number}: {counted(count, 'job')} for {tasks.title}; logs: {where}")
        try:
            wait_for_records(tasks, meter, _asks(number), where)
        finally:
            subprocess.run(["scancel", number], capture_output=True, check=False)

    return execute


def _submit(launch: LaunchBlock, folder: Path, parts: list[TaskPart]) -> str:
    """Submits the parts as an array and returns its number."""
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    executor = slurm_executor(
        launch,
        folder,
        job_name="growctl-prepare",
        nodes=1,
        ntasks_per_node=1,
        cpus_per_task=launch.slurm.cpus_per_device,
        mem=None if launch.slurm.memory is None else f"{math.ceil(launch.slurm.memory / 2**20)}M",
        array_parallelism=launch.slurm.array_limit or len(parts),
    )
    try:
        with redirect_stderr(StringIO()):  # submitit prints sbatch's message, and raises it too
            jobs = executor.submit_array(parts)
    except (FailedJobError, FailedSubmissionError) as error:
        said = (str(error).strip() or type(error).__name__).splitlines()[-1]
        raise RunFailed(
            f"sbatch rejected the jobs that prepare the dataset: {said}; `sinfo` shows whether SLURM answers here, and"
            " its partitions"
        ) from None
    number: str = jobs[0].job_id.partition("_")[0]
    write_file(_jobs_file(folder), json.dumps(number).encode())
    return number


def _jobs_file(folder: Path) -> Path:
    return folder / "array.json"


def _cancel_earlier(folder: Path) -> None:
    """Cancels the jobs of a process that was killed, and waits until they have ended."""
    path = _jobs_file(folder)
    if path.exists():
        number = str(json.loads(path.read_bytes()))
        subprocess.run(["scancel", number], capture_output=True, check=False)
        while job_states([number]):
            time.sleep(1)
        path.unlink()


def _asks(number: str) -> Callable[[], bool]:
    """A function that says whether jobs of an array are queued or running, as SLURM said in the last seconds."""
    asked, alive = time.monotonic(), True

    def is_alive() -> bool:
        nonlocal asked, alive
        if alive and time.monotonic() >= asked + ASK_SECONDS:
            asked = time.monotonic()
            try:
                alive = bool(job_states([number]))
            except Failure:  # a busy controller
                alive = True
        return alive

    return is_alive
