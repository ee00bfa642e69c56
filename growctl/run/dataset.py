"""Finds or prepares the dataset of a run, and verifies it against the hashes of the run's first start."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from growctl.ladder.datasets import dataset_warnings, exhausted, known_sizes
from growctl.ledger.entries import RunEntry
from growctl.ledger.file import LedgerError
from growctl.ledger.ledger import Ledger
from growctl.run.screen import Screen
from growctl.runs.directory import RunError
from growctl.runs_dir import RunPaths, RunsPaths
from growctl.schedule.blocks import Schedule
from growctl.schedule.sources import prepare_data
from stages.checkpoint.directory import set_aside
from stages.checkpoint.manifest import CheckpointError, read_manifest
from stages.corpus.prepared import reading_of
from stages.corpus.tasks import Progress
from stages.data.dataset import dataset_parts, read_dataset_manifest
from stages.data.errors import DataError
from stages.data.evaluation_windows import EvaluationWindows
from stages.data.packing import packing_facts
from stages.data.remote import remote_reading, write_remote_reading
from stages.data.samples import TrainingSamples
from stages.images.either import AnyManifest, check_any_dataset, read_any_manifest
from stages.spec import TrainSpec


@dataclass(frozen=True)
class PrepareDocument:
    """A prepared dataset."""

    path: Path
    manifest: AnyManifest
    """The content of its manifest.json."""

    warnings: tuple[str, ...] = ()
    """Such as a validation set that is too small, one sentence or two each."""


class RunDataset:
    """Finds or prepares the dataset of a run."""

    def __init__(self, schedule: Schedule, runs_dir: Path, screen: Screen, with_controls: bool = False) -> None:
        """`with_controls`: whether the controls of `schedule` are to be trained too."""
        self.schedule = schedule
        self.with_controls = with_controls
        self.runs = RunsPaths(runs_dir)
        self.screen = screen
        self.mixture = schedule.data.mixture

    def known(self, ledger: Ledger, directory: Path) -> Path:
        """The dataset that the run in `directory` started with; prepares it again if it is missing or damaged.

        Raises RunError if the dataset is gone and the text gives another one.
        """
        first = first_dataset(ledger, directory)
        if first is None:
            return self.prepared()
        return self._whole(*first, directory)

    def of_ladder(self, ladder: RunEntry, directory: Path) -> Path:
        """The dataset that the `ladder` in `directory` was trained on, for a control of it; raises as `known` does."""
        dataset = self._whole(Path(ladder.dataset), ladder.dataset_fingerprint, directory)
        self._check_lasts(dataset)
        return dataset

    def _check_lasts(self, dataset: Path) -> None:
        """Raises RunError if a source of a mixture may not be read as often as the run needs."""
        parts = dataset_parts(dataset) if self.mixture else ()
        sizes = {str(part.name): part.manifest.splits["train"].num_tokens for part in parts}
        if used_up := exhausted(self.schedule, sizes, self.with_controls):
            raise RunError(used_up)

    def _whole(self, recorded: Path, fingerprint: str | None, directory: Path) -> Path:
        """The dataset `recorded` if it is intact, else one prepared again; RunError if that one differs."""
        moved_along = self.runs.datasets / recorded.name  # `recorded` may be relative to another working directory
        recorded = moved_along if moved_along.exists() else recorded
        try:
            if fingerprint in (None, check_any_dataset(recorded, self.screen.preparing).fingerprint):
                self._read_as_configured(recorded)
                return recorded
        except DataError as error:
            # Rename only datasets in our own datasets directory: the ledger may name any path.
            ours = recorded.exists() and recorded.resolve().parent == self.runs.datasets.resolve() and not self.mixture
            aside = f"moved to {set_aside(recorded).name}, " if ours else ""
            self.screen.message(f"{error}; {aside}preparing it again")
        dataset = self.prepared()
        now = read_any_manifest(dataset).fingerprint
        if fingerprint not in (None, now):
            images = self.schedule.data.images
            text = "data.mixture" if self.mixture else images.source if images else self.schedule.data.source
            raise RunError(
                f"{directory} was trained on a dataset with the fingerprint {str(fingerprint)[:12]}..., "
                f"but {text} now gives {dataset} with {now[:12]}...: the source or its "
                "tokenization has changed. Restore the source, or start a separate run with --name"
            )
        return dataset

    def _read_as_configured(self, dataset: Path) -> None:
        """Applies the schedule's cache to remote tokens: it, or the place of the runs directory, may have changed."""
        for part in () if self.schedule.data.images else dataset_parts(dataset):
            if reading := remote_reading(part.directory):
                write_remote_reading(part.directory, reading_of(self.schedule.data, reading.url, self.runs.datasets))

    def prepared(self) -> Path:
        """The dataset that the schedule describes, reused or prepared now.

        Raises RunError if its tokenizer has more tokens than the model's vocabulary, DataError if it cannot be prepared
        or is too short.
        """
        screen, log = self.screen, self.runs.datasets_log
        progress = Progress(log, screen.preparing, screen.preparing_work, screen.message)
        if images := self.schedule.data.images:
            from stages.images.pixels import Augmenter  # needs the extra for images

            Augmenter(images.augmentation, size=1)  # raises UserError if the workers could not augment
        dataset = prepare_data(self.schedule.data, self.runs.datasets, progress)
        if not images:
            self._check_text(dataset)
        for warning in dataset_warnings(self.schedule, known_sizes(self.schedule, self.runs.directory)):
            screen.message(f"warning: {warning}")
        return dataset

    def _check_text(self, dataset: Path) -> None:
        manifest = read_dataset_manifest(dataset)
        if manifest.vocab_size > self.schedule.vocab_size:
            raise RunError(
                f"model.vocab_size = {self.schedule.vocab_size}: the tokenizer has {manifest.vocab_size} tokens; "
                f"use {manifest.vocab_size} or more"
            )
        is_remote = any(remote_reading(part.directory) for part in dataset_parts(dataset))
        if is_remote and self.schedule.model.vocab_size is None and manifest.vocab_size < self.schedule.vocab_size:
            raise RunError(
                f"model.vocab_size: is missing, so {self.schedule.vocab_size} rows were assumed, but the tokenizer of "
                f"{dataset} has {manifest.vocab_size} tokens. growctl opened that dataset only now; run the same "
                "command again"
            )
        length = self.schedule.longest_context
        TrainingSamples(dataset, length, self.schedule.seed)  # raises DataError if the text is shorter than a sequence
        self._check_lasts(dataset)
        EvaluationWindows(dataset, "validation", length)

    def pack(self, dataset: Path) -> None:
        """Packs the documents of `dataset` if the schedule says so and that was not done before.

        The workers would do it too, each for itself. Raises DataError if the index cannot be written.
        """
        length = self.schedule.longest_context  # packing allows only one context
        for part in dataset_parts(dataset) if self.schedule.data.packing == "best_fit" else ():
            packing_facts(part.directory, length)


def recorded_ladder(directory: Path) -> RunEntry:
    """The ladder in `directory`, as its ledger has it; raises RunError if there is none yet, LedgerError if that cannot
    be read."""
    path = RunPaths(directory).ledger
    if not path.is_file():
        raise RunError(f"{path}: there is no ledger here. A control trains on its ladder's data; run the ladder first")
    with Ledger(path, read_only=True) as ledger:
        return ledger.run()


def check_control(directory: Path, ladder: RunEntry) -> None:
    """Raises RunError if the control in `directory` was started on other data than its `ladder`."""
    begun_on = fingerprint_begun_on(directory)
    if begun_on not in (None, ladder.dataset_fingerprint):
        raise RunError(
            f"{directory} was trained on other data (fingerprint {str(begun_on)[:12]}...) than its ladder "
            f"({ladder.dataset_fingerprint[:12]}...), so they cannot be compared; move it away and run the command "
            "again to retrain it, or leave controls out with --no-controls"
        )


def fingerprint_begun_on(directory: Path) -> str | None:
    """The fingerprint of a run's training data, from its ledger or else its checkpoints; None if neither has it."""
    path = RunPaths(directory).ledger
    if path.is_file():
        with suppress(LedgerError), Ledger(path, read_only=True) as ledger:
            return ledger.run().dataset_fingerprint
    stages = [stage for _, _, stage in RunPaths(directory).stages_found()]
    starts = [path for stage in stages for path in (stage.initial, stage.converted_start)]  # perhaps of other data
    for manifest in [path for stage in stages for path in stage.manifests() if path.parent not in starts]:
        with suppress(CheckpointError):
            if fingerprint := read_manifest(manifest.parent).dataset_fingerprint:
                return fingerprint
    return None


def first_dataset(ledger: Ledger, directory: Path) -> tuple[Path, str | None] | None:
    """The path of the dataset that the run in `directory` started with, and its fingerprint if the ledger has it."""
    if ledger.stages():
        entry = ledger.run()
        return Path(entry.dataset), entry.dataset_fingerprint
    for _, _, stage in RunPaths(directory).stages_found():  # the ledger may be new although the run is not
        with suppress(ValidationError, FileNotFoundError):
            return Path(TrainSpec.model_validate_json(stage.spec.read_bytes()).dataset), None
    return None
