"""Finds the dataset that a user names, by its directory or by a schedule, and what training reads of it."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from growctl.data_view.document import StagePasses
from growctl.ladder.mixture_spans import mixture_spans
from growctl.ladder.releases import plan_run
from growctl.ladder.stage_plans import plan_stages
from growctl.mixture.needs import MixturePart, mixture_parts, sizes_of
from growctl.mixture.sources import prepared_data
from growctl.runs_dir import RunsPaths
from growctl.schedule.load import load_schedule
from growctl.schema.blocks import Schedule
from model.errors import UserError
from stages.data.corpus import DataSpec
from stages.data.dataset import DatasetManifest, data_parts, read_dataset_manifest, verify_dataset
from stages.data.mixture import WhenExhausted
from stages.data.source_errors import reading
from stages.spec import MixtureSpan, Packing
from stages.stage_dir import MANIFEST_NAME


@dataclass(frozen=True)
class Target:
    """A dataset, and the schedule that it was prepared for if the user named that."""

    directory: Path
    manifest: DatasetManifest
    schedule: Schedule | None = None
    first_sample: int = 0
    """Where the schedule's first stage begins: 0 unless it starts from a checkpoint."""

    @property
    def vocab_size(self) -> int:
        """Rows of the model's embedding; without a schedule, as many as the tokenizer needs."""
        return self.schedule.vocab_size if self.schedule else self.manifest.vocab_size

    def require_unknown(self, sequence_length: int | None, seed: int | None) -> None:
        """Raises UserError for a value that the schedule has: it would be known twice."""
        if self.schedule is None:
            return
        if sequence_length is not None:
            raise UserError(f"--sequence-length {sequence_length}: the schedule has it; override it with "
                            f"training.sequence_length={sequence_length}")  # fmt: skip
        if seed is not None:
            raise UserError(f"--seed {seed}: the schedule has it; override it with seed={seed}")

    def order(self, sequence_length: int | None, seed: int | None) -> tuple[int, int]:
        """(sequence length, seed) of the samples, from the schedule or as given. Raises UserError if one is missing."""
        if self.schedule is not None:
            return self.schedule.training.sequence_length, self.schedule.seed
        if sequence_length is None or seed is None:
            raise UserError(
                f"{self.directory}: the samples depend on the sequence length and the seed; give --sequence-length and "
                "--seed, or a schedule instead of the dataset"
            )
        return sequence_length, seed

    @property
    def packing(self) -> Packing:
        """How documents become samples: as the schedule says."""
        return self.schedule.data.packing if self.schedule else "concatenate"

    def samples_of_step(self, step: int) -> tuple[int, int]:
        """(first sample, number of samples) of optimizer step `step`, counted from 1 at the ladder's start.

        Raises UserError without a schedule, or if it has fewer steps.
        """
        if self.schedule is None:
            raise UserError(f"--step {step}: a dataset has no steps; give a schedule, or --sample")
        last = plan_stages(self.schedule)[-1]
        steps = last.first_step + last.num_steps
        if not 1 <= step <= steps:
            raise UserError(f"--step {step}: the stages of the schedule have steps 1 to {steps:,}")
        batch_size = self.schedule.training.batch_size
        return self.first_sample + (step - 1) * batch_size, batch_size

    def caveat(self) -> str:
        """Why a run may read other samples at a step than its schedule says, in sentences; empty if it never does."""
        if self.schedule is None:
            return ""
        anomalies, early = self.schedule.anomalies, self.schedule.growth.slope is not None
        slope = "growth.slope may end a stage early: the steps after it then read earlier samples. "
        rollback = "After a rollback, a run skips samples: its later steps read later ones. "
        rolls_back = "rollback" in (anomalies.non_finite, anomalies.spikes)
        return f"{slope if early else ''}{rollback if rolls_back else ''}".strip()

    def passes(self) -> tuple[StagePasses, ...]:
        """What each stage and release of the schedule reads; nothing without a schedule."""
        if self.schedule is None:
            return ()
        length, batch_size = self.schedule.training.sequence_length, self.schedule.training.batch_size
        windows = {name: tokens // length for name, tokens in self._train_tokens().items()}
        if not all(windows.values()):
            return ()  # shorter than a sample: reading one fails with the reason
        found, mixture = [], self.mixture_parts()
        for plan in plan_run(self.schedule):
            first, samples = self.first_sample + plan.first_step * batch_size, plan.num_steps * batch_size
            parts = [part for part in mixture if part.stage == plan.name]
            epochs = [part.train_tokens / length / windows[part.source] for part in parts]
            at_end = [part.epochs or 0.0 for part in parts]
            found.append(
                StagePasses(
                    name=plan.name,
                    branch_of=plan.branch_of,
                    first_sample=first,
                    num_samples=samples,
                    num_tokens=plan.train_tokens,
                    epochs=max(epochs) if parts else samples / windows[""],
                    epochs_at_end=max(at_end) if parts else (first + samples) / windows[""],
                )
            )
        return tuple(found)

    def mixture_parts(self) -> tuple[MixturePart, ...]:
        """What each stage and release of the schedule reads of each source; nothing without a mixture."""
        if self.schedule is None or not self.manifest.sources:
            return ()
        return tuple(mixture_parts(self.schedule, sizes_of(self.manifest, self.directory)))

    def spans(self) -> tuple[MixtureSpan, ...]:
        """The weights of a mixture along the schedule; nothing without one: then its own weights count."""
        if self.schedule is None:
            return ()
        base, batch_size = self.schedule.base, self.schedule.training.batch_size
        firsts = [self.first_sample + plan.first_step * batch_size for plan in plan_stages(self.schedule)]
        return mixture_spans(self.schedule, firsts, base.mixture if base and self.first_sample else ())

    @property
    def when_exhausted(self) -> WhenExhausted:
        """What follows when a source is used up: as the schedule says."""
        return self.schedule.data.when_exhausted if self.schedule else "stop"

    def _train_tokens(self) -> dict[str, int]:
        """The tokens of the train split, of a mixture by source."""
        return {
            name or "": read_dataset_manifest(path).splits["train"].num_tokens
            for name, path in data_parts(self.directory)
        }


def find_target(
    reference: str,
    overrides: Sequence[str],
    runs_dir: Path,
    tell: Callable[[str], None],
) -> Target:
    """The dataset in the directory or at the URL `reference`, or else the newest prepared for that schedule.

    Raises DataError if it is no dataset or damaged, UserError if it is not prepared.
    """
    if (is_url := "://" in reference) or Path(reference).is_dir():
        if overrides:
            what = "URL" if is_url else "directory"
            raise UserError(f"{overrides[0]}: {reference} is a {what}; only schedules take overrides")
        directory = _at_url(reference, RunsPaths(runs_dir).datasets) if is_url else Path(reference)
        return Target(directory, verify_dataset(directory, hashes=False))
    schedule = load_schedule(reference, overrides, runs_dir=runs_dir, tell=tell)
    runs = RunsPaths(runs_dir)
    found = next((path for path, _ in prepared_data(schedule.data, runs.datasets)), None)
    if found is None:
        where = [] if runs_dir == Path("runs") else ["--runs-dir", str(runs_dir)]
        command = shlex.join(["growctl", "prepare", reference, *overrides, *where])
        raise UserError(f"{reference}: its dataset is not in {runs.datasets}; to prepare it: {command}")
    manifest = verify_dataset(found, hashes=False)
    return Target(found, manifest, schedule, _first_sample(schedule, runs, manifest))


def _at_url(url: str, datasets_dir: Path) -> Path:
    """The directory here of the prepared dataset at a URL; raises UserError if there is none or it cannot be read."""
    from stages.data.progress import Progress
    from stages.data.remote_dataset import reading_of, remote_dataset

    spec = DataSpec(source=url)
    directory = remote_dataset(spec, datasets_dir, Progress(None, None))
    if directory is None:
        with reading(f"{url.rstrip('/')}/{MANIFEST_NAME}"):
            found = reading_of(spec, url, datasets_dir).files().content_if_there(MANIFEST_NAME)
        what = f"it has no {MANIFEST_NAME}" if found is None else f"its {MANIFEST_NAME} is not that of a dataset"
        raise UserError(f"there is no prepared dataset at {url}: {what}")
    return directory


def _first_sample(schedule: Schedule, runs: RunsPaths, manifest: DatasetManifest) -> int:
    if schedule.base is None:
        return 0
    from growctl.run.start import Start  # slow

    start = Start.of(schedule, runs.keys)
    return start.first_sample(manifest)[0] if start else 0
