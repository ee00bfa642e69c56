"""Numbered pieces of work that any process can do, each of which leaves a record once its files are complete.

A killed preparation goes on from the records that it finds. Whatever has no record is done again, with the same result.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import ValidationError

from model.strict import Strict
from stages.checkpoint.files import write_file
from stages.data.progress import Meter

RECORDS = "records"
"""The folder of the records below a dataset that is being prepared."""

Record = TypeVar("Record", bound=Strict)


class Tasks(ABC, Generic[Record]):
    """Tasks 0 to n - 1. Can be pickled, so that another process or machine can run a task."""

    title: str
    """What they do, as the progress calls it."""
    directory: Path
    """The dataset that is being prepared."""
    record_type: type[Record]

    @abstractmethod
    def __len__(self) -> int:
        """How many there are."""

    @abstractmethod
    def num_bytes(self, number: int) -> int:
        """How much a task reads."""

    @abstractmethod
    def work(self, number: int, meter: Meter) -> Record:
        """Does a task. Its files are complete and on the disk when this returns; doing it twice gives the same."""

    @property
    def shares_memory(self) -> bool:
        """Whether only this process can do the tasks, because they read from its memory."""
        return False

    def run(self, number: int, meter: Meter) -> None:
        """Does a task and leaves its record."""
        record = self.work(number, meter)
        write_file(self._path(number), record.model_dump_json().encode())

    def record(self, number: int) -> Record | None:
        """The record of a finished task, None of another."""
        try:
            return self.record_type.model_validate_json(self._path(number).read_bytes())
        except (OSError, ValidationError):
            return None

    def pending(self) -> list[int]:
        """The numbers of the tasks that are not finished."""
        return [number for number in range(len(self)) if self.record(number) is None]

    def records(self) -> list[Record]:
        """The records of all tasks, which must be finished."""
        found = [self.record(number) for number in range(len(self))]
        assert None not in found, f"tasks of {self.directory} left no record"
        return [record for record in found if record is not None]

    def _path(self, number: int) -> Path:
        return self.directory / RECORDS / f"{type(self).__name__}-{number:05d}.json"


Execute = Callable[[Tasks[Any], Meter], None]
"""Runs all pending tasks, somewhere, and returns when they are finished; raises the error of one that failed."""
