"""Finds the dataset that a user names, by its directory or by a schedule, and what training reads of it."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from growctl.data.samples import SampleEntry, read_samples
from growctl.ladder.budgets import stage_positions
from growctl.ladder.datasets import MixturePart, mixture_parts, mixture_spans, sizes_in
from growctl.ladder.load import load_schedule
from growctl.ladder.stage_plans import plan_run, plan_stages
from growctl.runs_dir import RunsPaths
from growctl.schedule.blocks import Schedule, longest_context
from growctl.schedule.sources import prepared_data
from model.errors import UserError
from stages.data.dataset import DatasetManifest, data_parts, read_dataset_manifest, verify_dataset
from stages.data.errors import reading
from stages.data.samples import open_samples
from stages.data.spec import DataSpec
from stages.stage_dir import MANIFEST_NAME


@dataclass(frozen=True)
class StagePasses:
    """What a stage or a release of the schedule reads."""

    name: str
    branch_of: str | None
    """The stage that a release branches from; None for a stage of the ladder."""
    sequence_length: int
    """Its context, in data tokens."""
    first_sample: int
    """Counted in sequences of its context."""
    num_samples: int
    num_tokens: int
    """Data tokens of the stage."""
    epochs: float
    """Passes over the train split in this stage; of a mixture, over the source that is read most often."""
    epochs_at_end: float
    """Passes from sample 0 to the stage's end, likewise."""


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

    def samples(
        self, sample: int | None, step: int | None, sequence_length: int | None, seed: int | None
    ) -> Iterator[SampleEntry]:
        """The sample with the index `sample`, a window of the longest context, or those of an optimizer step.

        Steps count from 1 at the ladder's start. Raises UserError if there is no such sample or step, or if the
        sequence length or the seed of the order is not known.
        """
        schedule = self.schedule
        if schedule is None:
            if step is not None:
                raise UserError(f"--step {step}: a dataset has no steps; give a schedule, or --sample")
            if sequence_length is None or seed is None:
                raise UserError(
                    f"{self.directory}: the samples depend on the sequence length and the seed; give --sequence-length "
                    "and --seed, or a schedule instead of the dataset"
                )
            return read_samples(self.directory, open_samples(self.directory, sequence_length, seed), sample or 0)
        longest, positions = longest_context(schedule), self._positions()
        first, count, context = sample or 0, 1, longest
        if step is not None:
            plans = plan_stages(schedule)
            steps = plans[-1].first_step + plans[-1].num_steps
            if not 1 <= step <= steps:
                raise UserError(f"--step {step}: the stages of the schedule have steps 1 to {steps:,}")
            plan = next(plan for plan in reversed(plans) if plan.first_step < step)
            context, count = plan.batch.sequence_length, plan.batch.batch_size
            first = positions[plan.index] // context + (step - 1 - plan.first_step) * count
        spans = mixture_spans(schedule, positions, schedule.base.mixture if schedule.base and self.position else ())
        data, order = schedule.data, (context, schedule.seed, spans)
        samples = open_samples(self.directory, *order, data.when_exhausted, data.packing, longest)
        return read_samples(self.directory, samples, first, count)

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
        parts = [(name or "", read_dataset_manifest(path)) for name, path in data_parts(self.directory)]
        windows = {name: manifest.splits["train"].num_tokens // longest for name, manifest in parts}
        if not all(windows.values()):
            return ()  # shorter than a sample: reading one fails with the reason
        passes, mixture, plans = [], self.mixture_parts(), plan_stages(self.schedule)
        for plan in plan_run(self.schedule):
            position = positions[plan.index] + (plan.first_token - plans[plan.index].first_token)
            of_stage, num_windows = [part for part in mixture if part.stage == plan.name], windows.get("", 1)
            epochs = [part.budget_tokens / longest / windows[part.source] for part in of_stage]
            read = plan.budget_tokens / longest
            at_end = (position / longest + read) / num_windows
            passes.append(
                StagePasses(
                    name=plan.name,
                    branch_of=plan.branch_of,
                    sequence_length=plan.batch.sequence_length,
                    first_sample=position // plan.batch.sequence_length,
                    num_samples=plan.num_samples,
                    num_tokens=plan.budget_tokens,
                    epochs=max(epochs, default=read / num_windows),
                    epochs_at_end=max([part.epochs or 0.0 for part in of_stage], default=at_end),
                )
            )
        return tuple(passes)

    def mixture_parts(self) -> tuple[MixturePart, ...]:
        """What each stage and release of the schedule reads of each source; nothing without a mixture."""
        if self.schedule is None or not self.manifest.sources:
            return ()
        return tuple(mixture_parts(self.schedule, sizes_in(self.manifest, self.directory)))

    def _positions(self) -> list[int]:
        """Where in the data the stages of the schedule begin."""
        plans = plan_stages(self.schedule) if self.schedule else []
        return stage_positions([plan.batch for plan in plans], [plan.num_steps for plan in plans], self.position)


def find_target(reference: str, overrides: Sequence[str], runs_dir: Path) -> Target:
    """The dataset in the directory or at the URL `reference`, or else the newest prepared for that schedule.

    Raises DataError if it is no dataset or damaged, UserError if it is not prepared.
    """
    runs = RunsPaths(runs_dir)
    if (is_url := "://" in reference) or Path(reference).is_dir():
        if overrides:
            raise UserError(f"{overrides[0]}: {reference} is a dataset; only schedules take overrides")
        directory = _at_url(reference, runs.datasets) if is_url else Path(reference)
        return Target(directory, verify_dataset(directory, hashes=False))
    schedule = load_schedule(reference, overrides, runs_dir=runs_dir)
    prepared = next((path for path, _ in prepared_data(schedule.data, runs.datasets)), None)
    if prepared is None:
        where = [] if runs_dir == Path("runs") else ["--runs-dir", str(runs_dir)]
        command = shlex.join(["growctl", "prepare", reference, *overrides, *where])
        raise UserError(f"{reference}: its dataset is not in {runs.datasets}; to prepare it: {command}")
    manifest, position = verify_dataset(prepared, hashes=False), 0
    if schedule.base is not None:
        from growctl.run.start import Start  # slow

        start = Start.of(schedule, runs.directory)
        position = start.position(manifest)[0] if start else 0
    return Target(prepared, manifest, schedule, position)


def _at_url(url: str, datasets_dir: Path) -> Path:
    """The directory here of the prepared dataset at a URL; raises UserError if there is none or it cannot be read."""
    from stages.corpus.prepared import reading_of, remote_dataset
    from stages.corpus.tasks import Progress

    spec = DataSpec(source=url)
    directory = remote_dataset(spec, datasets_dir, Progress(None, None))
    if directory is None:
        with reading(f"{url.rstrip('/')}/{MANIFEST_NAME}"):
            content = reading_of(spec, url, datasets_dir).files().content_if_there(MANIFEST_NAME)
        what = f"it has no {MANIFEST_NAME}" if content is None else f"its {MANIFEST_NAME} is not that of a dataset"
        raise UserError(f"there is no prepared dataset at {url}: {what}")
    return directory
