"""Takes over checkpoints of other runs, so that equal training is never repeated.

A checkpoint can stand in for training if its history equals the history that the stage is to have after as many steps
(stages/train/training_history.py). Resuming a run's own checkpoint is the special case in which nothing has to be taken
over.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from growctl.run.screen import Screen
from growctl.runs_dir import RunsPaths
from growctl.text.formatting import scientific
from stages.checkpoint.directory import finish_directory, whole_directory
from stages.checkpoint.files import link_or_copy
from stages.checkpoint.manifest import CheckpointError, Manifest, read_manifest, verify_checkpoint
from stages.metrics import MetricsWriter, Record, read_metrics
from stages.spec import TrainSpec
from stages.stage_dir import StagePaths, converted_directory
from stages.train.training_history import TrainingHistory


@dataclass(frozen=True)
class Candidate:
    """A checkpoint that stands in for the first steps of a stage, or for all of them."""

    directory: Path
    manifest: Manifest
    run: str
    """The run that made it: a name, or a path if it lies in another runs directory."""

    stage: StagePaths

    @property
    def steps(self) -> int:
        """The steps of the stage that it stands in for."""
        return self.manifest.step

    def judged_like(self, spec: TrainSpec) -> bool:
        """Whether its losses were measured on the validation sequences of the stage of `spec`."""
        record, wanted = self.manifest.lineage.training, spec.evaluations
        plan = record.evaluations if record else None
        return plan is not None and (plan.sequences, plan.length) == (wanted.sequences, wanted.length)

    def ends(self, spec: TrainSpec) -> bool:
        """Whether it can be the `final/` of the stage of `spec`."""
        is_whole = self.manifest.kind == "parameters" and self.steps == spec.num_steps
        return is_whole and self.judged_like(spec)

    @property
    def cost(self) -> tuple[float, float]:
        """The training FLOPs and the device-seconds of those steps."""
        before, own = (link.cost for link in self.manifest.lineage.history[-2:])
        return own.flops.total - before.flops.total, max(0.0, own.device_seconds - before.device_seconds)


def reuse(spec: TrainSpec, training: TrainingHistory, own: int, sources: Sequence[Path], screen: Screen) -> bool:
    """Takes over the checkpoint that is furthest along the stage of `spec`, if any is beyond its `own` steps.

    Returns whether one was taken over. `training` is the stage's; the first of `sources` is the run's own runs
    directory.
    """
    for candidate in find_further(training, own, sources, screen.message):
        try:
            take_over(candidate, spec, own)
        except CheckpointError as error:
            screen.message(f"not reused: {error}")
        else:
            whole = candidate.steps == spec.num_steps
            steps = "whole" if whole else f"up to step {candidate.steps} of {spec.num_steps}"
            saved = scientific(candidate.cost[0] * (candidate.steps - own) / candidate.steps)
            screen.message(f"stage {spec.stage}: reused {steps} from {candidate.directory}; saves {saved} FLOPs")
            return True
    return False


def find_further(
    training: TrainingHistory, own_steps: int, runs_dirs: Sequence[Path], tell: Callable[[str], None]
) -> Iterator[Candidate]:
    """Yields the intact checkpoints that stand in for more than `own_steps` of a stage, the furthest first.

    The first of `runs_dirs` is the run's own, and only there are engine checkpoints reused. Of several at the same
    step, the end of a whole stage comes first, then engine checkpoints, because they may resume without a conversion.
    Broken ones are passed over with a message.
    """

    def rank(one: Candidate) -> tuple[Any, ...]:
        return -one.steps, not one.ends(training.spec), one.manifest.kind == "parameters", one.run, str(one.directory)

    further = (one for one in _candidates(runs_dirs) if one.steps > own_steps and training.leads_on_from(one.manifest))
    for candidate in sorted(further, key=rank):
        try:
            verify_checkpoint(candidate.directory)
        except (CheckpointError, FileNotFoundError) as error:
            tell(f"not reused: {error}")
        else:
            yield candidate


def take_over(candidate: Candidate, spec: TrainSpec, own_steps: int) -> Path:
    """Links `candidate` into the stage of `spec` and records where it comes from; returns its place there.

    `own_steps` are the steps that the run has trained itself. A checkpoint of the whole stage becomes `final/`, another
    one that the stage resumes from. The record is written before the checkpoint appears, so a checkpoint that was taken
    over always has one. Raises CheckpointError, and leaves nothing, if its files are removed meanwhile.
    """
    stage, manifest = StagePaths(Path(spec.directory)), candidate.manifest
    step, whole = stage.step(candidate.steps), candidate.ends(spec)
    target = stage.final if whole else step if manifest.kind == "engine" else converted_directory(step)
    with whole_directory(target) as staging:
        for name in manifest.files:
            try:
                link_or_copy(candidate.directory / name, staging / name)
            except FileNotFoundError as error:
                raise CheckpointError(f"{candidate.directory} is gone: its run has removed it meanwhile") from error
        _record(candidate, spec, own_steps, whole)
        finish_directory(target, manifest)
    return target


def _candidates(runs_dirs: Sequence[Path]) -> Iterator[Candidate]:
    for number, runs_dir in enumerate(runs_dirs):
        runs = RunsPaths(runs_dir)
        for run in runs.all_runs():
            name = str(run.directory) if number else run.directory.name
            for stage in (paths for _, _, part in run.stages_found() for paths in (part, part.release)):
                for directory in (stage.final, *(() if number else stage.checkpoints().values())):
                    try:
                        yield Candidate(directory, read_manifest(directory), name, stage)
                    except (CheckpointError, OSError):
                        continue  # incomplete, broken or removed meanwhile


def _record(candidate: Candidate, spec: TrainSpec, own: int, whole: bool) -> None:
    """Appends the records of a reuse to the stage's metrics.jsonl: the work, and the evaluations of the other run."""
    records, run = read_metrics(candidate.stage.metrics), Path(candidate.run)
    segments = [s for s in payers(records, run.name) if s.last_step > own and s.first_step < candidate.steps]
    starts = [record for record in records if record["event"] in ("start", "reused")]
    writer = MetricsWriter(StagePaths(Path(spec.directory)).metrics, spec.attempt)
    for segment in segments or [Segment(own, math.inf, run.name)]:
        first, last = max(own, segment.first_step), min(candidate.steps, segment.last_step)
        writer.write(
            "reused",
            int(last),
            0.0,
            run=str(run.with_name(segment.paid_by)),  # a bare name if it is in our own runs directory
            checkpoint=str(candidate.directory),
            device=starts[-1]["device"] if starts else "unknown",
            num_devices=starts[-1]["num_devices"] if starts else 1,
            precision=candidate.manifest.precision,
            resumed_from=own,
            device_seconds=round(candidate.cost[1] * (last - first) / candidate.steps, 3),
        )
    for record in kept_evaluations(records):
        within = candidate.judged_like(spec) and (own < record["step"] <= candidate.steps or record["step"] == own == 0)
        if within and (whole or record["point"] != "final"):
            values = {key: value for key, value in record.items() if key not in ("event", "attempt", "step")}
            writer.write("evaluation", record["step"], **values | {"seconds": 0.0})
    if whole:
        writer.write("end", candidate.steps, 0.0)
    writer.sync()
    writer.close()


class Segment(NamedTuple):
    """Steps of a stage that one run paid for."""

    first_step: int
    last_step: float
    """Infinite while the run that trains them goes on."""
    paid_by: str


def payers(records: Sequence[Record], run: str) -> list[Segment]:
    """Who paid for which steps of the stage that wrote `records`: `run` itself, or the runs that it reused."""
    segments: list[Segment] = []
    attempt, step = 0, 0
    for record in records:
        if record["event"] not in ("start", "reused"):
            continue
        if record["attempt"] != attempt:
            attempt, step = record["attempt"], record["resumed_from"] or 0
            segments = [s._replace(last_step=min(s.last_step, step)) for s in segments if s.first_step < step]
        is_reused = record["event"] == "reused"
        segments.append(Segment(step, *((record["step"], record["run"]) if is_reused else (math.inf, run))))
        step = record["step"]
    return segments


def kept_evaluations(records: Sequence[Record]) -> list[Record]:
    """The evaluations among `records` that no later attempt has repeated, oldest first."""
    resumed = {r["attempt"]: r["resumed_from"] or 0 for r in records if r["event"] in ("start", "reused")}
    kept = {}
    for record in records:
        if record["event"] != "evaluation":
            continue
        later = (step for attempt, step in resumed.items() if attempt > record["attempt"])
        if record["step"] <= min(later, default=math.inf):
            kept[record["step"], record["point"]] = record
    return list(kept.values())
