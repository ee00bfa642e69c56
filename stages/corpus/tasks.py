"""Numbered pieces of work that any process can do, how far they have come, and running them on this machine.

Each leaves a record once its files are complete. A killed preparation goes on from the records that it finds. Whatever
has no record is done again, with the same result.
"""

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

from pydantic import ValidationError

from model.strict import Strict
from stages.checkpoint.files import write_file
from stages.data.dataset import DatasetSplit, OnProgress
from stages.data.errors import Interrupted
from stages.data.spec import SkippedRecords, SplitName

RECORDS = "records"
"""The folder of the records below a dataset that is being prepared."""


class Meter:
    """Counts bytes and tokens of a piece of work."""

    def __init__(self, description: str = "", total_bytes: int = 0, progress: "Progress | None" = None) -> None:
        self.description, self.total_bytes, self._progress = description, total_bytes, progress
        self.done_bytes = self.earlier_bytes = self.num_tokens = self._percent = 0
        self._start = self._reported = time.monotonic()

    def advance(self, num_bytes: int, num_tokens: int = 0) -> None:
        """Adds what was done. Reports each percent, and the figures once a second."""
        self.done_bytes += num_bytes
        self.num_tokens += num_tokens
        if self._progress is None:
            return
        if (percent := min(100, 100 * self.done_bytes // max(1, self.total_bytes))) > self._percent:
            self._percent = percent
            if self._progress.on_progress:
                self._progress.on_progress(self.description, percent / 100)
        if self._progress.on_work and (now := time.monotonic()) >= self._reported + 1:
            self._reported = now
            self._progress.on_work(self)

    def skip(self, num_bytes: int) -> None:
        """Adds what an earlier process has done."""
        self.earlier_bytes += num_bytes
        self.advance(num_bytes)

    @property
    def seconds(self) -> float:
        """Since the start of this process's work."""
        return time.monotonic() - self._start

    @property
    def seconds_left(self) -> float | None:
        """At the speed so far; None if it is not known."""
        done, left = self.done_bytes - self.earlier_bytes, max(0, self.total_bytes - self.done_bytes)
        return self.seconds * left / done if done and self.total_bytes else None


@dataclass
class Progress:
    """Reports progress to the caller and to a log, if the log's folder exists."""

    log_path: Path | None = None
    on_progress: OnProgress | None = None
    on_work: Callable[[Meter], None] | None = None
    """Receives the meter of the work, once a second."""
    tell: Callable[[str], None] = lambda line: None
    """Gets lines that the user should see, whatever else is on the screen."""

    def say(self, message: str, fraction: float | None = None) -> None:
        """Reports `message` to the log and, with the fraction done, to the caller."""
        if self.log_path and self.log_path.parent.is_dir():
            with self.log_path.open("a", encoding="utf-8") as log:
                log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {message}\n")
        if self.on_progress:
            self.on_progress(message, fraction)

    def meter(self, message: str, total_bytes: int) -> Meter:
        """Reports the start of work on `total_bytes`."""
        self.say(message, 0.0)
        return Meter(message, total_bytes, self)


class ShardRecord(Strict):
    """The shards that a task has written."""

    splits: dict[SplitName, DatasetSplit]
    """Their documents of each split. Train has no files yet if the documents are to be shuffled."""

    skipped: SkippedRecords = SkippedRecords()
    """The bad records in the files that it read."""


@dataclass(frozen=True)
class Tasks:
    """Tasks that any process can do: it can be pickled."""

    title: str
    """What they do, as the progress calls it."""
    directory: Path
    """The dataset that is being prepared."""
    sizes: tuple[int, ...]
    """How many bytes each task reads."""
    work: Callable[[int, Meter], ShardRecord]
    """Does a task by its number. Its files are complete and on the disk when this returns; doing it twice gives the
    same."""

    def __len__(self) -> int:
        return len(self.sizes)

    def run(self, number: int, meter: Meter | None = None) -> int:
        """Does a task and leaves its record. Returns how many tokens `meter` has counted."""
        meter = meter or Meter()
        write_file(self._path(number), self.work(number, meter).model_dump_json().encode())
        return meter.num_tokens

    def record(self, number: int) -> ShardRecord | None:
        """The record of a finished task, None of another."""
        try:
            return ShardRecord.model_validate_json(self._path(number).read_bytes())
        except (OSError, ValidationError):
            return None

    def pending(self) -> list[int]:
        """The numbers of the tasks that are not finished."""
        return [number for number in range(len(self)) if self.record(number) is None]

    def finished(self, progress: Progress, execute: "Execute") -> list[ShardRecord]:
        """The records of all tasks, which `execute` runs unless they are finished."""
        meter, pending = progress.meter(self.title, sum(self.sizes)), self.pending()
        meter.skip(sum(self.sizes) - sum(self.sizes[number] for number in pending))
        if pending:
            execute(self, meter)
        records = [record for number in range(len(self)) if (record := self.record(number)) is not None]
        assert len(records) == len(self), f"tasks of {self.directory} left no record"
        return records

    def _path(self, number: int) -> Path:
        return self.directory / RECORDS / f"{self.title}-{number:05d}.json"


Execute = Callable[[Tasks, Meter], None]
"""Runs all pending tasks, somewhere, and returns when they are finished; raises the error of one that failed."""


def run_locally(workers: int | None = None, log_path: Path | None = None) -> Execute:
    """Runs tasks in `workers` processes, by default one per core, but in this one if there is one task.

    A process uses its share of the cores, so that one alone is as fast for one task. What the processes print goes to
    `log_path`. (datatrove's executor replaces the log handlers of its caller, and leaves its processes behind.)
    """

    def execute(tasks: Tasks, meter: Meter) -> None:
        pending, cores = tasks.pending(), len(os.sched_getaffinity(0))
        if (count := min(workers or cores, len(pending))) < 2:
            for number in pending:
                tasks.run(number, meter)
            return
        spawning = get_context("spawn")
        held, lifeline = spawning.Pipe(duplex=False)
        setup = (held, log_path or Path(os.devnull), max(1, cores // count))
        pool = ProcessPoolExecutor(count, spawning, _start_worker, setup)
        with held, pool, lifeline:  # closed in reverse order: the lifeline first, before the pool waits for its workers
            futures = {pool.submit(tasks.run, number): number for number in pending}
            try:
                for future in as_completed(futures):
                    meter.advance(tasks.sizes[futures[future]], future.result())
            except BrokenProcessPool as error:
                died = f"data.workers: one of {count} processes died, perhaps out of memory; try fewer"
                raise Interrupted(died) from error

    return execute


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
