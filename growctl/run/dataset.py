"""The dataset of a run: the one that it began with, held against its hashes, or one prepared now."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from growctl.ledger.ledger import Ledger, LedgerError, RunEntry
from growctl.plan.datasets import DATASETS
from growctl.run.requests import RunError
from growctl.run.screen import Screen
from growctl.schema.blocks import Schedule
from growctl.text.formatting import byte_count
from stages.checkpoint.manifest import CheckpointError, read_manifest, set_aside
from stages.data.dataset import HASHED_BYTES, EvaluationWindows, TrainingSamples, check_dataset
from stages.data.prepare import DataError, prepare, read_dataset_manifest
from stages.spec import TrainSpec


class RunDataset:
    """Finds or makes it."""

    def __init__(self, schedule: Schedule, runs_dir: Path, screen: Screen) -> None:
        self.schedule = schedule
        self.runs_dir = runs_dir
        self.screen = screen

    def known(self, ledger: Ledger, directory: Path) -> Path:
        """What the run in `directory` began with, where it is whole; else what the schedule describes.

        RunError where that is another dataset.
        """
        first = first_dataset(ledger, directory)
        return self._whole(*first, directory) if first else self.prepared()

    def of_ladder(self, ladder: "RecordedLadder") -> Path:
        """The dataset that `ladder` was trained on, for one of its controls; RunError where it cannot be had."""
        return self._whole(Path(ladder.entry.dataset), ladder.entry.dataset_fingerprint, ladder.directory)

    def _whole(self, known: Path, fingerprint: str | None, directory: Path) -> Path:
        """The dataset `known` where it is whole, else one prepared again; RunError where that differs."""
        moved_along = self.runs_dir / DATASETS / known.name  # `known` may be relative to where an earlier run stood
        known = moved_along if moved_along.exists() else known
        try:
            if fingerprint in (None, check_dataset(known, self.screen.preparing).fingerprint):
                return self._told_of_size(known)
        except DataError as error:
            # Only what lies among our datasets is renamed, whatever place a ledger names.
            ours = known.exists() and known.resolve().parent == (self.runs_dir / DATASETS).resolve()
            aside = f"moved to {set_aside(known).name}, " if ours else ""
            self.screen.message(f"{error}; {aside}preparing it again")
        dataset = self.prepared()
        now = read_dataset_manifest(dataset).fingerprint
        if fingerprint not in (None, now):
            raise RunError(
                f"{directory} was trained on a dataset with the fingerprint {str(fingerprint)[:12]}..., "
                f"and {self.schedule.data.source} now gives {dataset} with {now[:12]}...: its text, or what "
                "made tokens of it, has changed. Put that back, or start a run of its own with --name"
            )
        return dataset

    def _told_of_size(self, dataset: Path) -> Path:
        """`dataset`; where it is so large that the hashes of its files were not checked, with a message."""
        if (num_bytes := read_dataset_manifest(dataset).num_file_bytes) > HASHED_BYTES:
            self.screen.message(
                f"{dataset} has {byte_count(num_bytes)}: only its files' sizes were checked; `growctl verify "
                f"--integrity {dataset}` reads them all"
            )
        return dataset

    def prepared(self) -> Path:
        """What the schedule describes, found or made. RunError where its tokens are too many for the model."""
        datasets = self.runs_dir / DATASETS
        dataset = prepare(
            self.schedule.data,
            datasets,
            log_path=datasets / "log.txt",
            on_progress=self.screen.preparing,
        )
        manifest = read_dataset_manifest(dataset)
        if manifest.vocab_size > self.schedule.vocab_size:
            raise RunError(
                f"model.vocab_size = {self.schedule.vocab_size}: the tokenizer has {manifest.vocab_size} tokens; "
                "that many or more"
            )
        length = self.schedule.training.sequence_length
        TrainingSamples(dataset, length, self.schedule.seed)  # a DataError where the text is shorter than one sequence
        EvaluationWindows(dataset, "validation", length)
        return self._told_of_size(dataset)


@dataclass(frozen=True)
class RecordedLadder:
    """A ladder as its ledger has it, for its controls."""

    directory: Path
    entry: RunEntry
    last_size: int
    """Parameters of its last stage."""

    @classmethod
    def read(cls, directory: Path) -> "RecordedLadder":
        """The ladder in `directory`; RunError where it has not begun, LedgerError where its ledger cannot be read."""
        path = directory / "ledger.db"
        if not path.is_file():
            raise RunError(
                f"{path}: there is no ledger here, and a control trains on its ladder's data; run the ladder first"
            )
        with Ledger.open(path, read_only=True) as ledger:
            return cls(directory, ledger.run(), ledger.stages()[-1].num_parameters)

    def check_control(self, directory: Path) -> None:
        """RunError where the control in `directory` was begun on other data than the ladder's."""
        begun_on, ladders = fingerprint_begun_on(directory), self.entry.dataset_fingerprint
        if begun_on not in (None, ladders):
            raise RunError(
                f"{directory} was trained on other data (fingerprint {str(begun_on)[:12]}...) than its ladder in "
                f"{self.directory} ({ladders[:12]}...), so they cannot be compared; move it away and run again to "
                "train it anew, or leave controls out with --no-controls"
            )


def fingerprint_begun_on(directory: Path) -> str | None:
    """The fingerprint of the data that a run has trained on: by its ledger, else by its checkpoints; else None."""
    path = directory / "ledger.db"
    if path.is_file():
        with suppress(LedgerError), Ledger.open(path, read_only=True) as ledger:
            return ledger.run().dataset_fingerprint
    for manifest in sorted(directory.glob("stages/*/*/manifest.json")):
        with suppress(CheckpointError):
            if fingerprint := read_manifest(manifest.parent).dataset_fingerprint:
                return fingerprint
    return None


def first_dataset(ledger: Ledger, directory: Path) -> tuple[Path, str | None] | None:
    """Where the dataset of the run in `directory` lies so far, and its fingerprint where the ledger has it."""
    if ledger.stages():
        entry = ledger.run()
        return Path(entry.dataset), entry.dataset_fingerprint
    for spec in sorted(directory.glob("stages/*/spec.json")):  # where the ledger is new and the run is not
        with suppress(ValidationError):
            return Path(TrainSpec.model_validate_json(spec.read_bytes()).dataset), None
    return None
