"""What executors on other machines share: a worker's errors reach the command as files, as its results do."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from growctl.whole_file import replace_file
from model.errors import Failure, UserError
from stages.corpus.tasks import Meter, Tasks
from stages.data.errors import DataError, Interrupted

POLL_SECONDS = 1.0
JOBS = "jobs"
"""The folder for scripts and logs, below a dataset that is being prepared."""


class TaskPart:
    """Some tasks that one process on any machine runs, one after another. Can be pickled."""

    def __init__(self, tasks: Tasks[Any], numbers: list[int], num_threads: int) -> None:
        self.tasks = tasks
        self.numbers = numbers
        self.num_threads = num_threads

    def __call__(self) -> None:
        """Runs the tasks that are not finished. The message of a user's error goes to a file."""
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


def error_file(tasks: Tasks[Any], number: int) -> Path:
    """Where a process leaves the message of the error of a task."""
    return tasks.directory / JOBS / f"{number:05d}.error"


def new_folder(tasks: Tasks[Any]) -> Path:
    """The folder for scripts and logs, without the errors of earlier attempts."""
    folder = tasks.directory.absolute() / JOBS
    folder.mkdir(exist_ok=True)
    for path in folder.glob("*.error"):
        path.unlink()
    return folder


def wait_for_records(tasks: Tasks[Any], meter: Meter, is_alive: Callable[[], bool], where: str) -> None:
    """Returns when all tasks have records, and reports each to `meter`.

    Raises DataError with the message of a task's error; Interrupted if no process `is_alive` and tasks are missing;
    `where` names the logs in that message.
    """
    pending = tasks.pending()
    while pending:
        alive = is_alive()  # before looking for records, so that none is missed that the last process leaves
        failed = [number for number in pending if error_file(tasks, number).exists()]
        if failed:
            raise DataError(error_file(tasks, failed[0]).read_text())
        left = tasks.pending()
        for number in set(pending) - set(left):
            meter.advance(tasks.num_bytes(number))
        pending = left
        if pending and not alive:
            raise Interrupted(
                f"{tasks.title} ended with {len(pending)} of {len(tasks)} parts missing; see {where}. Run the same "
                "command again to resume"
            )
        if pending:
            time.sleep(POLL_SECONDS)
