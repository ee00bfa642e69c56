"""What runs still need: checkpoints that they start from or may reuse, and datasets."""

import json
import re
import socket
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from growctl.ladder.stage_plans import plan_stages, worker_spec
from growctl.ledger.file import LedgerError
from growctl.ledger.ledger import Ledger
from growctl.runs.directory import own_schedule
from growctl.runs.lock import find_holder
from growctl.runs_dir import RunPaths, RunsPaths
from growctl.schedule.blocks import Schedule
from growctl.schedule.data_block import DataBlock
from growctl.schedule.sources import mixtures_in, prepared_data
from model.errors import UserError
from stages.checkpoint.manifest import CheckpointError, Manifest, history_of, read_manifest
from stages.data.prepared import prepared_datasets
from stages.process.holder import Holder, read_holder
from stages.stage_dir import MIXTURE_PREFIX
from stages.train.training_history import history_at_start

_START = re.compile(rb"^start:(?! *null *$)", re.MULTILINE)
"""A schedule's `start`, unless it is null."""


def why_in_use(directory: Path) -> str | None:
    """Why a growctl may be at work in a run directory; None if none is.

    A process on another machine counts unless it recorded a clean exit, because its lock may not be visible here.
    """
    lock = RunPaths(directory).lock
    try:
        if holder := find_holder(directory):
            return f"it is in use by another growctl ({holder})"
    except OSError as error:
        return f"{lock} cannot be checked: {error.strerror}"
    last = read_holder(lock) if lock.is_file() else Holder()
    if last.host not in (None, socket.gethostname()):
        return f"it may be in use by another growctl ({last}): {lock} has no clean exit; clean it on that machine"
    return None


@dataclass(frozen=True)
class NeededCheckpoints:
    """The checkpoints inside finished stages that runs need: to start from, or perhaps to reuse while they run."""

    bases: dict[str, str]
    """The running run that starts from a model, by the hash of the first entry in the model's history."""

    starts: dict[Path, str]
    """The run whose schedule starts from a checkpoint, by the checkpoint's directory."""

    unknown: tuple[str, ...] = ()
    """Runs that may need any checkpoint, because their schedules cannot be read."""

    @classmethod
    def of(cls, directories: Iterable[Path]) -> "NeededCheckpoints":
        """What the runs in `directories` need."""
        bases: dict[str, str] = {}
        starts: dict[Path, str] = {}
        unknown = []
        for directory in directories:
            try:
                if why_in_use(directory):
                    bases |= dict.fromkeys(_bases(directory), directory.name)
                if start := _start(directory):
                    starts[start] = directory.name
            except (UserError, OSError):
                unknown.append(directory.name)
        return cls(bases, starts, tuple(unknown))

    def why_needed(self, path: Path, checkpoint: Manifest) -> str | None:
        """Why a run may need the `checkpoint` in the directory `path`; None if none does."""
        if self.unknown:
            return f"{self.unknown[0]} may need it: its schedule cannot be read"
        if run := self.starts.get(path.resolve()):
            return f"{run} starts from it"
        run = self.bases.get(history_of(checkpoint)[0].hash)
        return run and f"{run} is running and may reuse it: it starts from the same model"


def _bases(directory: Path) -> set[str]:
    """The hashes of the models that a run starts from. Raises UserError if its schedule cannot be read."""
    run = RunPaths(directory)
    schedule = own_schedule(run.schedule)
    bases = {_new_model(schedule)}
    checkpoints = [path.parent for _, _, stage in run.stages_found() for path in stage.manifests()]
    for checkpoint in [*checkpoints, *([Path(schedule.base.path)] if schedule.base else [])]:
        with suppress(CheckpointError):
            bases.add(history_of(read_manifest(checkpoint))[0].hash)
    return bases


def _start(directory: Path) -> Path | None:
    """The checkpoint that a run's schedule starts from, if any. Raises UserError if the schedule cannot be read."""
    path = RunPaths(directory).schedule
    # Loading every schedule would take a while, and few have a start.
    if not path.is_file() or not _START.search(path.read_bytes()):
        return None
    base = own_schedule(path).base
    return Path(base.path).resolve() if base else None


def _new_model(schedule: Schedule) -> str:
    """The hash of the untrained model of a schedule's first stage."""
    unused = {"directory": "", "dataset": "", "initial": None, "resume": None}
    spec = worker_spec(
        schedule, plan_stages(schedule)[0], attempt=1, samples_seen=0, micro_batch_size=1, launched_at=0.0, **unused
    )
    return history_at_start(spec)[0].hash


@dataclass(frozen=True)
class DatasetUse:
    """Which runs use which datasets."""

    runs: dict[str, tuple[str, ...]]
    """The names of the runs that use a dataset, by the dataset's name."""

    unknown: tuple[str, ...] = ()
    """Runs that have started and whose files no longer say on which dataset."""

    @classmethod
    def of(cls, directories: Iterable[Path]) -> "DatasetUse":
        """How the runs in `directories` use datasets."""
        runs: dict[str, tuple[str, ...]] = {}
        unknown = []
        mixed: dict[Path, dict[str, set[str]]] = {}
        for directory in directories:
            names = _datasets(directory)
            if names and any(name.startswith(MIXTURE_PREFIX) for name in names):
                mixtures = mixed.setdefault(directory.parent, _sources_by_mixture(directory.parent))
                names = _with_sources(directory, names, mixtures)
            if names is None:
                unknown.append(directory.name)
            for name in names or ():
                runs[name] = (*runs.get(name, ()), directory.name)
        return cls(runs, tuple(unknown))


def _datasets(directory: Path) -> set[str] | None:
    """The names of the datasets that a run uses: as recorded, or else as its schedule asks. None if unknown."""
    run = RunPaths(directory)
    names = set()
    try:
        with suppress(LedgerError), Ledger.open(run.ledger, read_only=True) as ledger:
            names.add(Path(ledger.run().dataset).name)
        for _, _, stage in run.stages_found():
            with suppress(FileNotFoundError, ValueError, LookupError, TypeError, RecursionError):
                names.add(Path(json.loads(stage.spec.read_bytes())["dataset"]).name)
        if not names:
            data = own_schedule(run.schedule).data
            names = _prepared_for(data, RunsPaths(directory.parent).datasets)
            return names if names or not run.has_begun() else None
    except (UserError, OSError):
        return None
    return names


def _prepared_for(data: DataBlock, datasets_dir: Path) -> set[str]:
    """The names of the datasets that `data` describes. Of a mixture, perhaps only some sources are prepared yet."""
    found = [prepared_data(data, datasets_dir), *(prepared_datasets(spec, datasets_dir) for spec in data.specs)]
    return {path.name for path, _ in chain.from_iterable(found)}


def _with_sources(directory: Path, names: set[str], mixtures: dict[str, set[str]]) -> set[str] | None:
    """`names` and those of the sources of each mixture; None if a mixture is damaged and the run's schedule too."""
    damaged = [name for name in names if name.startswith(MIXTURE_PREFIX) and name not in mixtures]
    found = names.union(*(mixtures.get(name, set()) for name in names))
    try:
        data = own_schedule(RunPaths(directory).schedule).data if damaged else None
    except (UserError, OSError):
        return None
    return found | _prepared_for(data, RunsPaths(directory.parent).datasets) if data else found


def _sources_by_mixture(runs_dir: Path) -> dict[str, set[str]]:
    """The names of the datasets that each mixture in a runs directory is made of, by the mixture's name."""
    found = mixtures_in(RunsPaths(runs_dir).datasets)
    return {path.name: {Path(entry["directory"]).name for entry in document["sources"]} for path, document in found}
