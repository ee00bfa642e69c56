"""Runs tasks on a Ray cluster through datatrove's RayPipelineExecutor."""

import logging
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from growctl.prepare.far_tasks import TaskPart, new_folder, wait_for_records
from model.errors import UserError
from stages.corpus.tasks import Execute, Meter, Tasks
from stages.data.errors import DataError


class ExecutorError(UserError):
    """An executor that cannot be used here."""


class RankStep:
    """A step of a datatrove pipeline: rank i runs the pending task number i."""

    def __init__(self, tasks: Tasks[Any], pending: list[int]) -> None:
        self.tasks, self.pending = tasks, pending

    def __call__(self, data: object, rank: int, world_size: int) -> None:
        """Runs one task. A user's error is in its file; Ray would only try again."""
        try:
            TaskPart(self.tasks, [self.pending[rank]], num_threads=1)()
        except UserError:
            return


def run_on_ray(workers: int | None) -> Execute:
    """Runs tasks on the Ray cluster of RAY_ADDRESS, or on one that Ray starts on this machine; `workers` at once."""
    try:
        import ray
    except ModuleNotFoundError as error:
        raise ExecutorError("--executor ray: needs Ray: pip install 'growctl[ray]'") from error

    def execute(tasks: Tasks[Any], meter: Meter) -> None:
        if tasks.shares_memory:
            raise DataError("--executor ray: this data.source is in the memory of this process; use --executor local")
        folder = new_folder(tasks)
        if not ray.is_initialized():
            ray.init(log_to_driver=False, logging_level=logging.ERROR)
        pending = tasks.pending()
        with _quiet_datatrove() as RayPipelineExecutor:
            executor = RayPipelineExecutor(
                [RankStep(tasks, pending)],
                tasks=len(pending),
                workers=workers or -1,
                mem_per_cpu_gb=1,
                logging_dir=str(folder / secrets.token_hex(4)),
            )
            thread = threading.Thread(target=executor.run, daemon=True)
            thread.start()
            try:
                wait_for_records(tasks, meter, thread.is_alive, str(folder))
            finally:
                ray.shutdown()
                thread.join(10)

    return execute


@contextmanager
def _quiet_datatrove() -> Iterator[Any]:
    """datatrove's executor, without its logging: its import would replace loguru's handlers."""
    from loguru import logger

    vars(logger).update(add=lambda *_, **__: 0, remove=lambda *_: None)
    logger.disable("datatrove")
    try:
        from datatrove.executor.ray import RayPipelineExecutor

        yield RayPipelineExecutor
    finally:
        del vars(logger)["add"], vars(logger)["remove"]  # but datatrove stays quiet: its thread may outlive an error
