"""The executors of `growctl prepare`: the tasks of a preparation on this machine, as SLURM jobs, or on a Ray cluster.

On other machines, the tasks' records say what is done, and files carry the messages of errors.
"""

import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from growctl.launch.machines import LaunchError, plain_path
from growctl.launch.slurm import cancel, check_slurm, job_states, need_slurm, slurm_executor, submit_array
from growctl.schedule.blocks import Schedule
from growctl.whole_file import replace_file
from model.errors import Failure, UserError
from stages.corpus.tasks import Execute, Meter, Tasks, run_locally
from stages.counted import counted
from stages.data.errors import DataError, Interrupted

ExecutorName = Literal["local", "slurm", "ray"]

POLL_SECONDS = 2.0
"""How often to look for records, and to ask which processes are left."""

MOST_JOBS = 1000
"""The most jobs of one array: SLURM's default MaxArraySize is 1001."""

JOBS = "jobs"
"""The folder for scripts, logs and errors, below a dataset that is being prepared."""
ARRAY = "array"
"""The file in it with the number of the array."""


def execute_on(
    executor: ExecutorName, schedule: Schedule, datasets_dir: Path, log_path: Path, tell: Callable[[str], None]
) -> Execute:
    """Runs tasks on `executor`. Raises LaunchError if that cannot work here."""
    if executor == "slurm":
        check_slurm(schedule.launch)
        need_slurm("--executor slurm")
        plain_path(datasets_dir, "the datasets directory")
        return lambda tasks, meter: _run_on_slurm(schedule, tasks, meter, tell)
    if executor == "ray":
        try:
            import ray
        except ModuleNotFoundError as error:
            raise LaunchError("--executor ray: needs Ray: pip install 'growctl[ray]'") from error
        return lambda tasks, meter: _run_on_ray(ray, schedule.data.workers, tasks, meter)
    return run_locally(schedule.data.workers, log_path)


class TaskPart:
    """Some tasks that one process on any machine runs, one after another. Can be pickled."""

    def __init__(self, tasks: Tasks, numbers: list[int], num_threads: int = 1) -> None:
        self.tasks = tasks
        self.numbers = numbers
        self.num_threads = num_threads

    def __call__(self) -> None:
        """Runs the tasks that are not finished. The message of an error goes to a file."""
        os.environ["RAYON_NUM_THREADS"] = str(self.num_threads)
        for number in self.numbers:
            if self.tasks.record(number) is None:
                try:
                    self.tasks.run(number, Meter())
                except (UserError, Failure) as error:
                    replace_file(error_file(self.tasks, number), str(error).encode())  # the command may look now
                    raise

    def checkpoint(self) -> Any:
        """What submitit starts if the job is requeued: the same tasks; finished ones are skipped."""
        from submitit.core.utils import DelayedSubmission

        return DelayedSubmission(self)


def error_file(tasks: Tasks, number: int) -> Path:
    """Where a process leaves the message of the error of a task."""
    return tasks.directory / JOBS / f"{number:05d}.error"


def _folder(tasks: Tasks) -> Path:
    """The folder for scripts, logs and errors, without the errors of earlier attempts."""
    folder = tasks.directory.absolute() / JOBS
    folder.mkdir(exist_ok=True)
    for path in folder.glob("*.error"):
        path.unlink()
    return folder


def _wait(tasks: Tasks, meter: Meter, is_alive: Callable[[], bool], logs: str) -> None:
    """Returns when all tasks have records, and reports each to `meter`.

    Raises DataError with the message of a task's error; Interrupted if no process `is_alive` and tasks are missing.
    """
    pending = tasks.pending()
    while pending:
        alive = is_alive()  # before looking for records, so that none is missed that the last process leaves
        if failed := [number for number in pending if error_file(tasks, number).exists()]:
            raise DataError(error_file(tasks, failed[0]).read_text())
        left = tasks.pending()
        for number in set(pending) - set(left):
            meter.advance(tasks.sizes[number])
        pending = left
        if pending and not alive:
            raise Interrupted(
                f"{tasks.title} ended with {len(pending)} of {len(tasks)} parts missing; see {logs}. Run the same "
                "command again to resume"
            )
        if pending:
            time.sleep(POLL_SECONDS)


def _run_on_slurm(schedule: Schedule, tasks: Tasks, meter: Meter, tell: Callable[[str], None]) -> None:
    """Submits an array of up to `data.workers` jobs with the options of `launch.slurm`, without GPUs, and waits for it.

    If this process is interrupted, it cancels the jobs. If it is killed, they go on, and the next one replaces them.
    """
    folder, launch = _folder(tasks), schedule.launch
    with suppress(FileNotFoundError):
        earlier = (folder / ARRAY).read_text()
        cancel([earlier])
        while job_states([earlier]):
            time.sleep(POLL_SECONDS)
    if not (pending := tasks.pending()):
        return
    count = min(schedule.data.workers or MOST_JOBS, MOST_JOBS, len(pending))
    parts = [TaskPart(tasks, pending[first::count], launch.slurm.cpus_per_device) for first in range(count)]
    executor = slurm_executor(launch, folder, None, count, job_name="growctl-prepare", nodes=1, ntasks_per_node=1)
    job = submit_array(executor, parts, "the jobs that prepare the dataset")[0]
    number = str(job.job_id).partition("_")[0]  # that of the array
    replace_file(folder / ARRAY, number.encode())
    logs = f"{folder}/{number}_*_log.out"
    tell(f"array {number}: {counted(count, 'job')} for {tasks.title}; logs: {logs}")

    def is_alive() -> bool:
        with suppress(Failure):
            return bool(job_states([number]))
        return True  # the controller is busy

    try:
        _wait(tasks, meter, is_alive, logs)
    finally:
        cancel([number])


def _run_on_ray(ray: Any, workers: int | None, tasks: Tasks, meter: Meter) -> None:
    """Runs tasks on the Ray cluster of RAY_ADDRESS, or on one that Ray starts on this machine; `workers` at once."""
    folder = _folder(tasks)
    if not (pending := tasks.pending()):
        return
    count = min(workers or len(pending), len(pending))
    if not ray.is_initialized():
        ray.init(log_to_driver=False, logging_level=logging.ERROR)
    run_part = ray.remote(num_cpus=1)(TaskPart.__call__)
    running = [run_part.remote(TaskPart(tasks, pending[first::count])) for first in range(count)]
    try:
        _wait(tasks, meter, lambda: bool(ray.wait(running, num_returns=count, timeout=0)[1]), f"Ray's logs ({folder})")
    finally:
        ray.shutdown()
