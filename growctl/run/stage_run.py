"""The training of one stage or release: takes over, trains and retrains until its `final/` is complete.

Afterwards its model writes texts, if the schedule has prompts.
"""

import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from growctl.ladder.costs import planned_micro_batch
from growctl.ladder.datasets import mixture_spans
from growctl.ladder.sizes import attending
from growctl.ladder.stage_plans import StagePlan, first_sample, paths_of, plan_stages, worker_spec
from growctl.launch.machines import Machines
from growctl.launch.workers import run_apart
from growctl.ledger.ledger import Ledger
from growctl.run.attempt import Attempt, Outcome, StageHistory, pause_after
from growctl.run.requests import RunFailed, RunRequest
from growctl.run.resume import World, checkpoint_to_resume, newest_own
from growctl.run.reuse import reuse
from growctl.run.screen import Screen
from growctl.run.start import Start, growth_message, made_from_previous
from growctl.runs_dir import RunsPaths
from growctl.trackers.adapters import TrackedRun
from growctl.trackers.tracking import Tracking
from model.errors import Failure, UserError
from stages.checkpoint.directory import clear_leftovers, clear_stage, whole_or_set_aside
from stages.checkpoint.files import write_file
from stages.checkpoint.manifest import Manifest, manifest_hash, read_manifest
from stages.data.dataset import read_dataset_manifest
from stages.generate.text_samples import TextRequest, TextSamples, read_samples
from stages.images.either import AnyManifest, read_any_manifest
from stages.metrics import Record
from stages.spec import MixtureSpan, TrainSpec
from stages.stage_dir import StagePaths
from stages.train.skipped_data import LeftOut, rollbacks_in_place, skipped_ranges, trained_without
from stages.train.training_history import TrainingHistory

PROGRAM = (sys.executable, "-m", "stages.generate.text_samples")

KILL_SECONDS = 300.0
"""The process that writes is killed after this time, loading the model included."""


class Execution:
    """One execution of one run: what its stages share."""

    def __init__(
        self,
        request: RunRequest,
        runs_dir: Path,
        machines: Machines,
        screen: Screen,
        controls: Sequence[Path] = (),
        sources: Sequence[Path] = (),
    ) -> None:
        """`controls`: directories of the ladder's controls, which may have started before it. `sources`: runs
        directories from which checkpoints are reused."""
        self.controls = controls
        self.sources = sources
        self.request = request
        self.schedule = request.schedule
        self.runs_dir = runs_dir
        self.paths = RunsPaths(runs_dir).run(request.name)
        self.plans = plan_stages(request.schedule)
        self.machines = machines
        self.screen = screen
        self.start = Start.of(request.schedule, runs_dir)
        self.dataset = Path()
        self.ledger: Ledger
        group = request.run_set.group if request.run_set else request.control_of or request.name
        tracked = TrackedRun(request.name, group, request.control or "ladder", self.schedule.model_dump(mode="json"))
        self.tracking = Tracking(tracked, self.schedule, RunsPaths(runs_dir), screen.message)

    def stage(self, plan: StagePlan) -> StagePaths:
        return paths_of(self.paths, plan)

    def num_devices(self, plan: StagePlan) -> int:
        """The number of ranks that train a stage, over all machines."""
        return self.schedule.launch.nodes_of(plan.index) * self.machines.devices

    def micro_batch_size(self, plan: StagePlan) -> int:
        """Sequences per forward pass on one device, as `growctl plan` shows it for the same devices."""
        return planned_micro_batch(self.schedule, plan, self.num_devices(plan), self.machines.on_each)


class StageRun:
    """The training of one stage or release in an execution of its run."""

    def __init__(self, execution: Execution, plan: StagePlan) -> None:
        self.execution, self.plan = execution, plan
        self.paths = execution.stage(plan)
        self.schedule, self.screen, self.ledger = execution.schedule, execution.screen, execution.ledger
        self._read_again()

    def _read_again(self) -> None:
        """Begins to read and book metrics.jsonl, from the first line on."""
        self._history = StageHistory(self.paths.metrics)
        self.execution.tracking.from_the_start(self.plan, self.execution.plans)
        self._books = self.ledger.books(self.plan.name)

    def finish(self) -> None:
        """Trains the stage to its `final/`, unless it has one."""
        plan, stage = self.plan, self.paths
        self._catch_up(attempt_over=True)
        if complaint := self._history.complaint():
            self.screen.message(complaint)
        if not self._whole(stage.final):
            stage.directory.mkdir(parents=True, exist_ok=True)
            clear_leftovers(stage.directory)  # whichever machine their processes ran on: this one holds the run now
            self._train(self._initial())
            if plan.branch_of:
                self.screen.message(f"released {plan.branch_of}, a finished model: {stage.final}")
        clear_stage(stage.directory)
        self.screen.stage_finished(plan)
        if written := write_new_samples(stage, self.schedule.samples.request(), self.screen.message):
            self.screen.sampled(plan, written)

    def _catch_up(self, attempt_over: bool = False) -> None:
        for records in self._history.read():
            self._books.sync(records)
            self.screen.catch_up(self.plan, records)
        if attempt_over:
            self._books.sync(attempt_over=True)

    def _reuse(self, initial: Path | None, left_out: tuple[LeftOut, ...]) -> None:
        """Takes over the checkpoint of another run that is furthest along the stage, if it is further than our own."""
        if not self.execution.sources:
            return
        spec = self._spec(initial, None, left_out)
        newest = newest_own(self.paths.directory, self.screen.message, partial(trained_without, left_out))
        own = read_manifest(newest) if newest else None
        new_precision = self.execution.machines.on_each.precision(self.schedule.training.precision)
        training = TrainingHistory(spec, self._dataset().fingerprint, (own and own.precision) or new_precision)
        if reuse(spec, training, own.step if own else 0, self.execution.sources, self.screen):
            self._catch_up(attempt_over=True)

    def _train(self, initial: Path | None) -> None:
        """Makes attempts at the stage until it has its `final/`.

        Restarts the workers, within limits, after a crash, a hang or a rollback to a checkpoint. Looks for checkpoints
        of other runs first, and after each rollback.
        """
        name, launch = self.plan.name, self.schedule.launch
        world = World(self.execution.num_devices(self.plan), launch.zero_stage, launch.offload)
        failures, start = 0, None
        looked_for: tuple[LeftOut, ...] | None = None
        while True:
            left_out = self.left_out()
            if left_out != looked_for:
                self._reuse(initial, left_out)
                looked_for = left_out
                if self._whole(self.paths.final):
                    return
            wanted = partial(trained_without, left_out)
            resume = checkpoint_to_resume(self.paths.directory, world, self.screen.message, wanted)
            failures = failures if resume == start else 0
            start = resume
            self._catch_up()  # a worker that outlived its runner may have written records since
            outcome = self._attempt(self._spec(initial, resume, left_out))
            if self._whole(self.paths.final):
                if outcome.kind != "ended":
                    self.screen.message(f"stage {name} is complete, but its workers {outcome.kind}: {outcome.reason}")
                return
            if self.left_out() != left_out:  # the workers rolled the stage back
                continue
            if outcome.kind == "ended":
                raise RunFailed(f"stage {name} ended without a complete final/; see {self.paths.log}")
            failed = f"stage {name} {outcome.kind}: {outcome.reason}"
            failures += 1
            if outcome.kind == "failed" or failures > launch.max_restarts:
                often = f" ({failures} times in a row, with no checkpoint in between)" if failures > 1 else ""
                raise RunFailed(f"{failed}{often}\nfull log: {self.paths.log}")
            self.screen.message(f"{failed}; restarting it ({failures} of {launch.max_restarts})")
            time.sleep(pause_after(failures))

    def left_out(self) -> tuple[LeftOut, ...]:
        """The data that the stage skips after its rollbacks; raises RunFailed after too many to the same step.

        Reads the ledger, not metrics.jsonl: the ledger is up to date here, and it keeps the record even if the line has
        been damaged since.
        """
        rollbacks = self.ledger.rollbacks(self.plan.name)
        left_out, most = skipped_ranges(rollbacks), self.schedule.anomalies.most
        if (times := rollbacks_in_place(rollbacks)) > most:
            raise RunFailed(
                f"stage {self.plan.name} was rolled back to step {left_out[-1][0]} {times} times, skipping more data "
                f"each time, and never reached its next checkpoint (anomalies.most = {most}); try a lower "
                f"learning_rate.peak (now {self.schedule.learning_rate.peak}) or more warm-up, under another --name"
            )
        return left_out

    def _initial(self) -> Path | None:
        """The checkpoint that the stage starts from, grown if it is to grow; None for a new model."""
        plan, initial, execution = self.plan, self.paths.initial, self.execution
        if plan.branch_of:
            return execution.stage(execution.plans[plan.index]).final
        if plan.index:
            previous = execution.stage(execution.plans[plan.index - 1]).final
            return made_from_previous(self.schedule, plan, previous, initial, self.screen)
        if not execution.start:
            return None
        return execution.start.made_initial(plan, self.paths, self._dataset(), self.screen)

    def _dataset(self) -> AnyManifest:
        return read_any_manifest(self.execution.dataset)

    def _spec(self, initial: Path | None, resume: Path | None, left_out: tuple[LeftOut, ...]) -> TrainSpec:
        plan, schedule = self.plan, self.schedule
        end_of_text = 0
        if schedule.data.document_mask:
            end_of_text = read_dataset_manifest(self.execution.dataset).end_of_text_id
        manifest = read_manifest(initial) if initial else None
        position = _position_after(manifest) if manifest and (plan.index or plan.branch_of) else self._begin()
        return worker_spec(
            schedule,
            plan,
            attempt=1 + max(self._history.last_attempt, self.ledger.last_attempt(plan.name)),
            # Absolute paths: on another machine or in a job, the worker has another working directory.
            directory=str(self.paths.directory.absolute()),
            dataset=str(self.execution.dataset.absolute()),
            model=attending(schedule, manifest.model if manifest else plan.model, end_of_text),
            initial=str(initial.absolute()) if initial else None,
            resume=str(resume.absolute()) if resume else None,
            samples_seen=first_sample(position, plan.batch.sequence_length),
            mixture=self._mixture(),
            left_out=left_out,
            made_in=f"{self.execution.request.name}/{plan.name}",
            micro_batch_size=self.execution.micro_batch_size(plan),
            launched_at=time.time(),
        )

    def _begin(self) -> int:
        """The position in the data at which the run begins."""
        return self.execution.start.position(self._dataset())[0] if self.execution.start else 0

    def _mixture(self) -> tuple[MixtureSpan, ...]:
        """The weights of a mixture's sources up to this stage, from the positions at which the stages really began."""
        if not self.schedule.data.mixture:
            return ()
        begin, execution = self._begin(), self.execution
        before = execution.start.base.mixture if execution.start and begin else ()
        finished = [read_manifest(execution.stage(each).final) for each in execution.plans[: self.plan.index]]
        return mixture_spans(self.schedule, [begin, *map(_position_after, finished)], before)

    def _attempt(self, spec: TrainSpec) -> Outcome:
        plan, settings = self.plan, self.schedule.launch
        if spec.attempt > 1:
            start = f"from {Path(spec.resume).name}" if spec.resume else "from the start"
            self.screen.message(f"stage {plan.name}: resuming {start} (attempt {spec.attempt})")
        write_file(self.paths.spec, spec.model_dump_json(indent=1).encode())
        launch = self.execution.machines.launch(self.paths.spec, settings.nodes_of(plan.index), spec.attempt)
        self.screen.stage_started(plan)
        try:
            return Attempt(spec, launch, self._history, settings.grace, self._take, self.screen.message).run()
        finally:
            if self._history.interrupted:  # records may be lost, or in the ledger without the books knowing it
                self._read_again()
            self._catch_up(attempt_over=True)

    def _take(self, new: list[Record]) -> None:
        """Takes in records that the workers wrote just now; prints a message if a growth moved the validation loss."""
        self._books.add(new)
        for record in new:
            self.screen.record(self.plan, record)
            if record.get("point") == "after_growth" and self.plan.is_grown:
                before = self._loss_before(record["num_tokens"])
                if message := growth_message(self.plan, self.paths, before, record["loss"]):
                    self.screen.message(message)
        if any(record["event"] != "train" for record in new):
            self._books.sync()

    def _loss_before(self, num_tokens: int) -> float | None:
        """The validation loss before the stage's growth, on the same `num_tokens`; None if it is not known."""
        if self.plan.index:
            earlier = self.ledger.evaluations(self.execution.plans[self.plan.index - 1].name)
            return earlier[-1].loss if earlier and earlier[-1].num_tokens == num_tokens else None
        base = self.ledger.run().base
        return base.validation_loss if base and base.validation_tokens == num_tokens else None

    def _whole(self, checkpoint: Path) -> bool:
        """Whether `checkpoint` exists and is intact; sets a broken one aside with a message."""
        return whole_or_set_aside(checkpoint, self.screen.message) is not None


def _position_after(manifest: Manifest) -> int:
    """The position in the data at which the training of a checkpoint stopped. One that was not trained is at 0."""
    return manifest.samples_seen * (manifest.context_length or 0)


def write_new_samples(stage: StagePaths, request: TextRequest, tell: Callable[[str], None]) -> TextSamples | None:
    """The texts that `stage.final` wrote just now; None if none are wanted, or if it has written them before.

    They are written again when the checkpoint or the request has changed. Texts that do not belong to the checkpoint
    and the request are removed first, so that the report never shows them.
    """
    try:
        written = read_samples(stage.samples)
        if written and (written.checkpoint, written.request) == (manifest_hash(stage.final), request):
            return None
        stage.samples.unlink(missing_ok=True)
        if not request.prompts:
            return None
        tell(f"{stage.directory.name}: writing texts on the CPU")
        return write_apart(stage, request)
    except Exception as error:  # whatever goes wrong here, the stage is trained
        kind = "" if isinstance(error, UserError | Failure | OSError) else f"{type(error).__name__}: "
        tell(f"no text samples: {kind}{error}")
        return None


def write_apart(stage: StagePaths, request: TextRequest) -> TextSamples:
    """Lets a separate process, which the system may kill for lack of memory, write the texts; raises Failure if it
    fails."""
    command = [*PROGRAM, str(stage.final), request.model_dump_json(), str(stage.samples)]
    run_apart(command, {}, stage.log, KILL_SECONDS)
    written = read_samples(stage.samples)
    if written is None:
        raise Failure(f"{stage.samples} cannot be read")
    return written
