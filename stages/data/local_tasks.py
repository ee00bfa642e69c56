"""Runs tasks on this machine: in this process, or in one process per core.

datatrove's LocalPipelineExecutor does the same, but logs to stderr from every process, replaces the log handlers of its
caller, and leaves its processes behind when the caller is killed.
"""

import os
import threading
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

from stages.data.progress import Meter
from stages.data.source_errors import Interrupted
from stages.data.tasks import Execute, Record, Tasks


def run_locally(workers: int | None = None, log_path: Path | None = None) -> Execute:
    """Runs tasks in `workers` processes, by default one per core, but in this one if there is one task.

    A process uses its share of the cores, so that one alone is as fast for one task. What the processes print goes to
    `log_path`.
    """

    def execute(tasks: Tasks[Record], meter: Meter) -> None:
        pending = tasks.pending()
        cores = len(os.sched_getaffinity(0))
        num_workers = 1 if tasks.shares_memory else min(workers or cores, len(pending))
        if num_workers > 1:
            _run_in_processes(tasks, pending, num_workers, max(1, cores // num_workers), log_path, meter)
        else:
            for number in pending:
                tasks.run(number, meter)

    return execute


def _run_in_processes(
    tasks: Tasks[Record], pending: list[int], workers: int, threads: int, log_path: Path | None, meter: Meter
) -> None:
    processes = get_context("spawn")
    held, lifeline = processes.Pipe(duplex=False)
    pool = ProcessPoolExecutor(workers, processes, _start_worker, (held, log_path or Path(os.devnull), threads))
    with held, pool, lifeline:  # closed in reverse order: the lifeline first, before the pool waits for its workers
        futures = {pool.submit(_run, tasks, number): number for number in pending}
        try:
            for future in as_completed(futures):
                meter.advance(tasks.num_bytes(futures[future]), future.result())
        except BrokenProcessPool as error:
            raise Interrupted(
                f"data.workers: one of {workers} processes died, perhaps out of memory; try fewer"
            ) from error


def _run(tasks: Tasks[Record], number: int) -> int:
    """Does a task in a worker process. Returns how many tokens it wrote."""
    meter = Meter()
    tasks.run(number, meter)
    return meter.num_tokens


def _start_worker(lifeline: Connection, log_path: Path, threads: int) -> None:
    """Sets up a worker process: limits its threads, sends its output to the log, and ends it when its parent ends."""
    os.environ["RAYON_NUM_THREADS"] = str(threads)
    log = os.open(log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)

    def end_with_parent() -> None:
        lifeline.poll(None)  # nothing is ever sent, so this returns when the parent closes its end or dies
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
