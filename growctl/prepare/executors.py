"""The executors of `growctl prepare`, by name."""

from pathlib import Path
from typing import Literal

from growctl.run.screen import Screen
from growctl.schedule.blocks import Schedule
from stages.corpus.tasks import Execute, run_locally

ExecutorName = Literal["local", "slurm", "ray"]


def execute_on(
    executor: ExecutorName, schedule: Schedule, datasets_dir: Path, log_path: Path, screen: Screen
) -> Execute:
    """Runs tasks on `executor`. Raises LaunchError or ExecutorError if that cannot work here."""
    workers = schedule.data.workers
    if executor == "slurm":
        from growctl.prepare.slurm_tasks import run_on_slurm

        return run_on_slurm(schedule.launch, workers, datasets_dir, screen)
    if executor == "ray":
        from growctl.prepare.ray_tasks import run_on_ray

        return run_on_ray(workers)
    return run_locally(workers, log_path)
