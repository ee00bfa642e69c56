"""Finds the dataset that a user names, by its directory or by a schedule, and what training reads of it."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from growctl.data_view.document import StagePasses
from growctl.ladder.budgets import stage_positions
from growctl.ladder.datasets import sizes_in
from growctl.ladder.load import load_schedule
from growctl.ladder.mixtures import MixturePart, mixture_parts, mixture_spans
from growctl.ladder.releases import plan_run
from growctl.ladder.stage_plans import plan_stages
from growctl.runs_dir import RunsPaths
from growctl.schedule.blocks import Schedule, longest_context
from growctl.schedule.sources import prepared_data
from model.errors import UserError
from stages.data.dataset import DatasetManifest, data_parts, read_dataset_manifest, verify_dataset
from stages.data.errors import reading
from stages.data.mixture import WhenExhausted
from stages.data.spec import DataSpec
from stages.spec import MixtureSpan, Packing
from stages.stage_dir import MANIFEST_NAME


@dataclass(frozen=True)
class Target:
    """A dataset, and the schedule that it was prepared for if the user named that."""

    directory: Path
    manifest: DatasetManifest
    schedule: Schedule | None = None
    position: int = 0
    """Where in the data the schedule begins (growctl/ladder/budgets.py): 0 unless it starts from a checkpoint."""

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
        """(sequence length, seed) of the samples, from the schedule or as given. Raises UserError if one is missing.

        The samples of a schedule whose stages have several contexts are windows of the longest.
        """
        if self.schedule is not None:
            return longest_context(self.schedule), self.schedule.seed
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

    def samples_of_step(self, step: int) -> tuple[int, int, int]:
        """(first sample, number of samples, their context) of optimizer step `step`, counted from 1 at the ladder's
        start. Samples are counted in that context.

        Raises UserError without a schedule, or if it has fewer steps.
        """
        if self.schedule is None:
            raise UserError(f"--step {step}: a dataset has no steps; give a schedule, or --sample")
        plans = plan_stages(self.schedule)
        steps = plans[-1].first_step + plans[-1].num_steps
        if not 1 <= step <= steps:
            raise UserError(f"--step {step}: the stages of the schedule have steps 1 to {steps:,}")
        plan = next(plan for plan in reversed(plans) if plan.first_step < step)
        batch = plan.batch
        first = self._positions()[plan.index] // batch.sequence_length
        return first + (step - 1 - plan.first_step) * batch.batch_size, batch.batch_size, batch.sequence_length

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
        longest, positions = longest_context(self.schedule), self._positions()
        windows = {name: tokens // longest for name, tokens in self._train_tokens().items()}
        if not all(windows.values()):
            return ()  # shorter than a sample: reading one fails with the reason
        found, mixture, plans = [], self.mixture_parts(), plan_stages(self.schedule)
        for plan in plan_run(self.schedule):
            position = positions[plan.index] + (plan.first_token - plans[plan.index].first_token)
            read, parts = plan.budget_tokens / longest, [part for part in mixture if part.stage == plan.name]
            epochs = [part.budget_tokens / longest / windows[part.source] for part in parts]
            at_end = [part.epochs or 0.0 for part in parts]
            found.append(
                StagePasses(
                    name=plan.name,
                    branch_of=plan.branch_of,
                    sequence_length=plan.batch.sequence_length,
                    first_sample=position // plan.batch.sequence_length,
                    num_samples=plan.num_samples,
                    num_tokens=plan.budget_tokens,
                    epochs=max(epochs) if parts else read / windows[""],
                    epochs_at_end=max(at_end) if parts else (position / longest + read) / windows[""],
                )
            )
        return tuple(found)

    def mixture_parts(self) -> tuple[MixturePart, ...]:
        """What each stage and release of the schedule reads of each source; nothing without a mixture."""
        if self.schedule is None or not self.manifest.sources:
            return ()
        return tuple(mixture_parts(self.schedule, sizes_in(self.manifest, self.directory)))

    def spans(self) -> tuple[MixtureSpan, ...]:
        """The weights of a mixture along the schedule; nothing without one: then its own weights count."""
        if self.schedule is None:
            return ()
        base = self.schedule.base
        return mixture_spans(self.schedule, self._positions(), base.mixture if base and self.position else ())

    def _positions(self) -> list[int]:
        """Where in the data the stages of the schedule begin."""
        plans = plan_stages(self.schedule) if self.schedule else []
        return stage_positions([plan.batch for plan in plans], [plan.num_steps for plan in plans], self.position)

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
    schedule = load_schedule(reference, overrides, runs_dir=runs_dir)
    runs = RunsPaths(runs_dir)
    found = next((path for path, _ in prepared_data(schedule.data, runs.datasets)), None)
    if found is None:
        where = [] if runs_dir == Path("runs") else ["--runs-dir", str(runs_dir)]
        command = shlex.join(["growctl", "prepare", reference, *overrides, *where])
        raise UserError(f"{reference}: its dataset is not in {runs.datasets}; to prepare it: {command}")
    manifest = verify_dataset(found, hashes=False)
    return Target(found, manifest, schedule, _position(schedule, runs, manifest))


def _at_url(url: str, datasets_dir: Path) -> Path:
    """The directory here of the prepared dataset at a URL; raises UserError if there is none or it cannot be read."""
    from stages.corpus.prepared import reading_of, remote_dataset
    from stages.corpus.tasks import Progress

    spec = DataSpec(source=url)
    directory = remote_dataset(spec, datasets_dir, Progress(None, None))
    if directory is None:
        with reading(f"{url.rstrip('/')}/{MANIFEST_NAME}"):
            found = reading_of(spec, url, datasets_dir).files().content_if_there(MANIFEST_NAME)
        what = f"it has no {MANIFEST_NAME}" if found is None else f"its {MANIFEST_NAME} is not that of a dataset"
        raise UserError(f"there is no prepared dataset at {url}: {what}")
    return directory


def _position(schedule: Schedule, runs: RunsPaths, manifest: DatasetManifest) -> int:
    if schedule.base is None:
        return 0
    from growctl.run.start import Start  # slow

    start = Start.of(schedule, runs.directory)
    return start.position(manifest)[0] if start else 0
