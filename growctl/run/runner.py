"""The runner, which alone decides from the files on disk what a run does next."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from uuid import uuid4

from growctl.ladder.budgets import first_sample, position_after
from growctl.ladder.conditions import comparison_conditions, data_conditions
from growctl.ladder.costs import planned_micro_batch
from growctl.ladder.datasets import mixture_spans
from growctl.ladder.sizes import attending
from growctl.ladder.stage_plans import (
    StagePlan,
    has_decayed,
    paths_of,
    plan_release,
    plan_run,
    plan_stages,
    with_releases,
    worker_spec,
)
from growctl.ladder.warnings import control_caveats, decays
from growctl.launch.devices import Devices
from growctl.launch.machines import Machines
from growctl.launch.resolve import run_devices
from growctl.ledger.entries import RunEntry, StageEntry
from growctl.ledger.file import BrokenLedger, move_aside
from growctl.ledger.ledger import Ledger
from growctl.ledger.lines import read_scores
from growctl.run.attempt import Attempt, Outcome, StageHistory, pause_after
from growctl.run.dataset import RecordedLadder, RunDataset
from growctl.run.requests import RunFailed, RunRequest, schedule_yaml
from growctl.run.resume import World, checkpoint_to_resume, newest_own
from growctl.run.reuse import reuse
from growctl.run.screen import Screen
from growctl.run.stage_samples import write_new_samples
from growctl.run.start import Start, growth_message, made_from_previous
from growctl.runs.directory import steps_done
from growctl.runs.lock import hold
from growctl.runs_dir import RunsPaths
from growctl.trackers.adapters import TrackedRun
from growctl.trackers.tracking import Tracking
from stages.checkpoint.directory import whole_or_set_aside
from stages.checkpoint.files import write_file
from stages.checkpoint.manifest import Manifest, read_manifest
from stages.checkpoint.retention import clear_leftovers, clear_stage
from stages.data.dataset import DatasetManifest, read_dataset_manifest
from stages.metrics import Record
from stages.spec import MixtureSpan, TrainSpec
from stages.stage_dir import StagePaths
from stages.train.skipped_data import LeftOut, rollbacks_in_place, skipped_ranges, trained_without
from stages.train.training_history import TrainingHistory


class Execution:
    """One execution of one run."""

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

    def run(self, last_stage: int | None = None, record: Callable[[], None] | None = None) -> None:
        """Prepares the data, then trains each stage up to index `last_stage` to its `final/`, growing in between.

        Calls `record` once it holds the run.

        A release is trained right after its stage, before the next one grows: the finished model is there as early as
        possible, and on the stage's own machines.
        """
        if self.start and not self.stage(self.plans[0]).initial.exists():
            self.start.check()
        self.screen.run_started(self.request.name, self.request.control, plan_run(self.schedule), self.schedule)
        data = RunDataset(self.schedule, self.runs_dir, self.screen, with_controls=bool(self.controls))
        dataset = ladder = None
        if self.request.control_of:
            ladder = RecordedLadder.read(self.runs_dir / self.request.control_of)
            ladder.check_control(self.paths.directory)
            dataset = data.of_ladder(ladder)
        elif not self.paths.ledger.exists():
            dataset = data.prepared()
        with hold(self.paths.directory):
            # Write the schedule first: this file marks the directory as a run.
            write_file(self.paths.schedule, schedule_yaml(self.schedule).encode())
            if record:
                record()
            with self._open_ledger() as self.ledger:
                self.dataset = dataset or data.known(self.ledger, self.paths.directory)
                data.pack(self.dataset)
                self._record_run(ladder)
                for control in self.controls:
                    RecordedLadder.read(self.paths.directory).check_control(control)
                with self.tracking:
                    self._stages(len(self.plans) if last_stage is None else last_stage + 1)
        if last_stage is None or last_stage + 1 == len(self.plans):
            self.screen.run_finished()

    def _stages(self, number: int) -> None:
        """Trains the first `number` stages, each followed by its release."""
        for index in range(number):
            StageRun(self, self.plans[index]).finish()
            done = steps_done(self.schedule, self.paths.directory)
            self.plans = plan_stages(self.schedule, done[: index + 1])
            self.screen.ladder.plan_again(with_releases(self.schedule, self.plans))
            if release := plan_release(self.schedule, self.plans[index]):
                StageRun(self, release).finish()

    def stage(self, plan: StagePlan) -> StagePaths:
        """The paths of a stage or a release."""
        return paths_of(self.paths, plan)

    def num_devices(self, plan: StagePlan) -> int:
        """The number of ranks that train a stage, over all machines."""
        return self.schedule.launch.nodes_of(plan.index) * self.machines.devices

    def devices(self) -> Devices:
        """The devices that train."""
        return run_devices(self.schedule, self.machines)

    def micro_batch_size(self, plan: StagePlan) -> int:
        """Sequences per forward pass on one device, as `growctl plan` shows it for the same devices."""
        return planned_micro_batch(self.schedule, plan, self.num_devices(plan), self.devices())

    def _open_ledger(self) -> Ledger:
        """The run's ledger. A broken one is set aside and rebuilt from the metrics.jsonl of each stage."""
        path = self.paths.ledger
        try:
            return Ledger.open(path)
        except BrokenLedger as error:
            aside = move_aside(path).name
            self.screen.message(f"{path} is broken: {error.why}; moved to {aside}, rebuilding it from metrics.jsonl")
            return Ledger.open(path)

    def _record_run(self, ladder: RecordedLadder | None) -> None:
        """Records the run, its stages and their scores in the ledger. `ladder`: that of a control."""
        manifest = read_dataset_manifest(self.dataset)
        entry = run_entry(self.request, self._run_id(), str(self.dataset), manifest, ladder, self.start)
        plans = plan_run(self.schedule)
        self.ledger.record_run(entry, [stage_entry(plan) for plan in plans])
        self.ledger.record_scores(score for plan in plans for score in read_scores(self.stage(plan).scores))

    def _run_id(self) -> str:
        """The run's id, created at the run's first start. It is a file of its own, so that it outlives the ledger."""
        path = self.paths.run_id
        if not path.exists():
            write_file(path, uuid4().hex.encode())
        return path.read_text(errors="replace")


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
            initial = self._initial()
            self._reuse(initial)
            if not self._whole(stage.final):
                self._train(initial)
            if plan.branch_of:
                self.screen.message(f"released {plan.branch_of}, a finished model: {stage.final}")
        clear_stage(stage.directory)
        self.screen.stage_finished(plan)
        if written := write_new_samples(stage, self.schedule.samples.request(), self.screen.message):
            self.screen.sampled(plan, written)

    def _catch_up(self, attempt_over: bool = False) -> None:
        """Books and shows the records that the stage's workers have written since the last call."""
        for records in self._history.read():
            self._books.sync(records)
            self.screen.catch_up(self.plan, records)
        if attempt_over:
            self._books.sync(attempt_over=True)

    def _reuse(self, initial: Path | None) -> None:
        """Takes over the checkpoint of another run that is furthest along the stage, if it is further than our own."""
        if not self.execution.sources:
            return
        left_out = self.left_out()
        spec = self._spec(initial, None, left_out)
        own = newest_own(self.paths.directory, self.screen.message, partial(trained_without, left_out))
        new_precision = self.execution.devices().precision(self.schedule.training.precision)
        training = TrainingHistory(spec, self._dataset().fingerprint, (own and own.precision) or new_precision)
        if reuse(spec, training, own.step if own else 0, self.execution.sources, self.screen):
            self._catch_up(attempt_over=True)

    def _train(self, initial: Path | None) -> None:
        """Makes attempts at the stage until it has its `final/`.

        Restarts the workers, within limits, after a crash, a hang or a rollback to a checkpoint.
        """
        name, launch = self.plan.name, self.schedule.launch
        world = World(self.execution.num_devices(self.plan), launch.zero_stage, launch.offload)
        failures, start = 0, None
        while True:
            left_out = self.left_out()
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
                self._reuse(initial)
                if self._whole(self.paths.final):
                    return
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

    def _dataset(self) -> DatasetManifest:
        return read_dataset_manifest(self.execution.dataset)

    def _spec(self, initial: Path | None, resume: Path | None, left_out: tuple[LeftOut, ...]) -> TrainSpec:
        """The next attempt."""
        plan, schedule = self.plan, self.schedule
        attempt = 1 + max(self._history.last_attempt, self.ledger.last_attempt(plan.name))
        end_of_text = self._dataset().end_of_text_id if schedule.data.document_mask else 0
        manifest: Manifest | None = read_manifest(initial) if initial else None
        return worker_spec(
            schedule,
            plan,
            attempt=attempt,
            # Absolute paths: on another machine or in a job, the worker has another working directory.
            directory=str(self.paths.directory.absolute()),
            dataset=str(self.execution.dataset.absolute()),
            model=attending(schedule, manifest.model if manifest else plan.model, end_of_text),
            initial=str(initial.absolute()) if initial else None,
            resume=str(resume.absolute()) if resume else None,
            samples_seen=first_sample(self._position(manifest), plan.batch.sequence_length),
            mixture=self._mixture(),
            when_exhausted=schedule.data.when_exhausted,
            left_out=left_out,
            made_in=f"{self.execution.request.name}/{plan.name}",
            micro_batch_size=self.execution.micro_batch_size(plan),
            launched_at=time.time(),
        )

    def _position(self, initial: Manifest | None) -> int:
        """The position in the data from which the stage continues."""
        start = self.execution.start
        if initial and start and self.plan.index == 0 and not self.plan.branch_of:
            return start.position(self._dataset())[0]
        return position_after(initial) if initial else 0

    def _mixture(self) -> tuple[MixtureSpan, ...]:
        """The weights of a mixture's sources up to this stage, from the positions at which the stages really began."""
        if not self.schedule.data.mixture:
            return ()
        begin, execution = 0, self.execution
        if execution.start:
            begin = execution.start.position(self._dataset())[0]
        before = execution.start.base.mixture if execution.start and begin else ()
        finished = [read_manifest(execution.stage(each).final) for each in execution.plans[: self.plan.index]]
        return mixture_spans(self.schedule, [begin, *map(position_after, finished)], before)

    def _attempt(self, spec: TrainSpec) -> Outcome:
        """Makes one attempt at the stage, keeping the screen and the ledger up to date."""
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


def run_entry(
    request: RunRequest,
    run_id: str,
    dataset: str,
    manifest: DatasetManifest,
    ladder: RecordedLadder | None,
    start: Start | None,
) -> RunEntry:
    """The run. `dataset` is the path, `manifest` that of the dataset; `ladder` is that of a control."""
    schedule, caveats = request.schedule, []
    if ladder and request.control:
        caveats = control_caveats(schedule, ladder.entry.base_flops)
    return RunEntry(
        name=request.name,
        schedule=request.label,
        control=request.control,
        control_of=request.control_of,
        seed=schedule.seed,
        dataset=dataset,
        dataset_fingerprint=manifest.fingerprint,
        conditions=comparison_conditions(schedule) | data_conditions(manifest),
        run_id=run_id,
        ladder_id=ladder.entry.run_id if ladder else None,
        decays=decays(schedule),
        caveats=caveats,
        base=start.entry(manifest) if start else None,
        validation_documents=manifest.splits["validation"].num_documents,
        validation_tokens=manifest.splits["validation"].num_tokens,
        training_tokens=manifest.splits["train"].num_tokens,
        group=request.run_set.group if request.run_set else None,
        overrides=request.run_set.overrides if request.run_set else {},
    )


def stage_entry(plan: StagePlan) -> StageEntry:
    """A stage or a release."""
    return StageEntry(
        name=plan.name,
        num_parameters=plan.num_parameters,
        num_embedding_parameters=plan.num_embedding_parameters,
        budget_tokens=plan.budget_tokens,
        num_steps=plan.num_steps,
        tokens_per_step=plan.tokens_per_step,
        step_flops=plan.step_flops,
        evaluation_flops_per_token=plan.evaluation_flops_per_token,
        own_evaluation_flops_per_token=plan.own_evaluation_flops_per_token,
        sequence_length=plan.batch.sequence_length,
        num_layers=plan.model.num_layers,
        branch_of=plan.branch_of,
        decayed=has_decayed(plan),
    )
