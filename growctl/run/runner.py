"""The runner, which alone decides from the files on disk what a run does next."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from uuid import uuid4

from growctl.ladder.costs import planned_micro_batch
from growctl.ladder.data_position import first_sample, position_after
from growctl.ladder.mixture_spans import mixture_spans
from growctl.ladder.releases import paths_of, plan_release, plan_run, with_releases
from growctl.ladder.sizes import attending
from growctl.ladder.stage_plans import StagePlan, plan_stages
from growctl.ladder.train_spec import worker_spec
from growctl.launch.machines import Machines
from growctl.launch.resolve import run_devices
from growctl.ledger.books import StageBooks
from growctl.ledger.file import BrokenLedger, move_aside
from growctl.ledger.ledger import Ledger
from growctl.ledger.lines import read_scores
from growctl.run.attempt import Attempt, Outcome, pause_after
from growctl.run.dataset import RecordedLadder, RunDataset
from growctl.run.entries import run_entry, stage_entry
from growctl.run.growing import grow, growth_message
from growctl.run.history import StageHistory
from growctl.run.requests import RunFailed, RunRequest, schedule_yaml
from growctl.run.resume import World, checkpoint_to_resume, newest_own
from growctl.run.reuse import reuse
from growctl.run.screen import Screen
from growctl.run.stage_samples import write_new_samples
from growctl.run.start import Start, started_from
from growctl.runs.directory import steps_done
from growctl.runs.lock import hold
from growctl.runs_dir import RunsPaths
from growctl.trackers.adapters import TrackedRun
from growctl.trackers.tracking import Tracking
from model.precision import Precision
from stages.checkpoint.directory import link_checkpoint, whole_or_set_aside
from stages.checkpoint.files import write_file
from stages.checkpoint.manifest import Manifest, history_of, read_manifest
from stages.checkpoint.retention import clear_leftovers, clear_stage
from stages.data.dataset import read_dataset_manifest
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
        self.ladder: RecordedLadder | None = None
        """The ladder of a control; set when the control runs."""
        self.ledger: Ledger
        self.tracking = self._trackers()

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
        dataset = None
        if self.request.control_of:
            self.ladder = RecordedLadder.read(self.runs_dir / self.request.control_of)
            self.ladder.check_control(self.paths.directory)
            dataset = data.of_ladder(self.ladder)
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
                self._open_books()
                for control in self.controls:
                    RecordedLadder.read(self.paths.directory).check_control(control)
                with self.tracking:
                    self._stages(len(self.plans) if last_stage is None else last_stage + 1)
        if last_stage is None or last_stage + 1 == len(self.plans):
            self.screen.run_finished()

    def _stages(self, number: int) -> None:
        """Trains the first `number` stages, each followed by its release."""
        for index in range(number):
            self._stage(self.plans[index])
            done = steps_done(self.schedule, self.paths.directory)
            self.plans = plan_stages(self.schedule, done[: index + 1])
            self.screen.planned_again(with_releases(self.schedule, self.plans))
            if release := plan_release(self.schedule, self.plans[index]):
                self._stage(release)

    def _trackers(self) -> Tracking:
        """The trackers of the run."""
        request = self.request
        ladder = request.control_of or request.name
        group, kind = request.run_set.group if request.run_set else ladder, request.control or "ladder"
        tracked = TrackedRun(request.name, group, kind, self.schedule.model_dump(mode="json"))
        return Tracking(tracked, self.schedule, RunsPaths(self.runs_dir), self.screen.message)

    def stage(self, plan: StagePlan) -> StagePaths:
        """The paths of a stage or a release."""
        return paths_of(self.paths, plan)

    def num_devices(self, plan: StagePlan) -> int:
        """The number of ranks that train a stage, over all machines."""
        return self.schedule.launch.nodes_of(plan.index) * self.machines.devices

    def _world(self, plan: StagePlan) -> World:
        return World(self.num_devices(plan), self.schedule.launch.zero_stage, self.schedule.launch.offload)

    def _open_ledger(self) -> Ledger:
        """The run's ledger. A broken one is set aside and rebuilt from the metrics.jsonl of each stage."""
        path = self.paths.ledger
        try:
            return Ledger.open(path)
        except BrokenLedger as error:
            aside = move_aside(path).name
            self.screen.verbatim(f"{path} is broken: {error.why}; moved to {aside}, rebuilding it from metrics.jsonl")
            return Ledger.open(path)

    def _open_books(self) -> None:
        manifest = read_dataset_manifest(self.dataset)
        entry = run_entry(self.request, self._run_id(), str(self.dataset), manifest, self.ladder, self.start)
        plans = plan_run(self.schedule)
        self.ledger.record_run(entry, [stage_entry(plan) for plan in plans])
        self.ledger.record_scores(score for plan in plans for score in read_scores(self.stage(plan).scores))

    def _run_id(self) -> str:
        """The run's id, created at the run's first start. It is a file of its own, so that it outlives the ledger."""
        path = self.paths.run_id
        if not path.exists():
            write_file(path, uuid4().hex.encode())
        return path.read_text(errors="replace")

    def _stage(self, plan: StagePlan) -> None:
        stage = self.stage(plan)
        history, books = self._from_the_start(plan)
        self._catch_up(plan, history, books)
        books.sync(attempt_over=True)
        if complaint := history.complaint():
            self.screen.message(complaint)
        if not self._whole(stage.final):
            stage.directory.mkdir(parents=True, exist_ok=True)
            clear_leftovers(stage.directory)  # whichever machine their processes ran on: this one holds the run now
            initial = self._initial(plan)
            self._reuse(plan, initial, history, books)
            if not self._whole(stage.final):
                self._train(plan, initial, history, books)
            if plan.branch_of:
                self.screen.message(f"released {plan.branch_of}, a finished model: {stage.final}")
        clear_stage(stage.directory)
        self.screen.stage_finished(plan)
        if written := write_new_samples(stage, self.schedule.samples.request(), self.screen.verbatim):
            self.screen.sampled(plan, written)

    def _from_the_start(self, plan: StagePlan) -> tuple[StageHistory, StageBooks]:
        """The stage's history and books, to read and book its metrics.jsonl from the first line on."""
        history = StageHistory(self.stage(plan).metrics)
        self.tracking.from_the_start(plan, self.plans)
        return history, self.ledger.books(plan.name, history.landmarks())

    def _catch_up(self, plan: StagePlan, history: StageHistory, books: StageBooks) -> None:
        """Books and shows the records that the stage's workers have written since the last call."""
        for records in history.read():
            books.sync(records)
            self.screen.catch_up(plan, records)

    def _reuse(self, plan: StagePlan, initial: Path | None, history: StageHistory, books: StageBooks) -> None:
        """Takes over the checkpoint of another run that is furthest along the stage, if it is further than our own."""
        if not self.sources:
            return
        number, left_out = 1 + max(history.last_attempt, self.ledger.last_attempt(plan.name)), self._left_out(plan)
        spec = self._spec(plan, number, initial, None, left_out)
        own = newest_own(self.stage(plan).directory, self.screen.message, partial(trained_without, left_out))
        fingerprint = read_dataset_manifest(self.dataset).fingerprint
        training = TrainingHistory(spec, fingerprint, (own and own.precision) or self._precision())
        if reuse(spec, training, own.step if own else 0, self.sources, self.screen):
            self._catch_up(plan, history, books)
            books.sync(attempt_over=True)

    def _precision(self) -> Precision:
        """The precision in which a new stage trains."""
        return run_devices(self.schedule, self.machines).precision(self.schedule.training.precision)

    def _train(self, plan: StagePlan, initial: Path | None, history: StageHistory, books: StageBooks) -> None:
        """Makes attempts at a stage until it has its `final/`.

        Restarts the workers, within limits, after a crash, a hang or a rollback to a checkpoint.
        """
        stage, most = self.stage(plan), self.schedule.launch.max_restarts
        failures, start = 0, None
        while True:
            left_out = self._left_out(plan)
            wanted = partial(trained_without, left_out)
            resume = checkpoint_to_resume(stage.directory, self._world(plan), self.screen.verbatim, wanted)
            failures = failures if resume == start else 0
            start = resume
            self._catch_up(plan, history, books)  # a worker that outlived its runner may have written records since
            number = 1 + max(history.last_attempt, self.ledger.last_attempt(plan.name))
            outcome = self._attempt(plan, self._spec(plan, number, initial, resume, left_out), history, books)
            if self._whole(stage.final):
                if outcome.kind != "ended":
                    self.screen.message(
                        f"stage {plan.name} is complete, but its workers {outcome.kind}: {outcome.reason}"
                    )
                return
            if self._left_out(plan) != left_out:  # the workers rolled the stage back
                self._reuse(plan, initial, history, books)
                if self._whole(stage.final):
                    return
                continue
            if outcome.kind == "ended":
                raise RunFailed(f"stage {plan.name} ended without a complete final/; see {stage.log}")
            failed = f"stage {plan.name} {outcome.kind}: {outcome.reason}"
            failures += 1
            if outcome.kind == "failed" or failures > most:
                often = f" ({failures} times in a row, with no checkpoint in between)" if failures > 1 else ""
                raise RunFailed(f"{failed}{often}\nfull log: {stage.log}")
            self.screen.verbatim(f"{failed}; restarting it ({failures} of {most})")
            time.sleep(pause_after(failures))

    def _left_out(self, plan: StagePlan) -> tuple[LeftOut, ...]:
        """The data that a stage skips after its rollbacks; raises RunFailed after too many to the same step.

        Reads the ledger, not metrics.jsonl: the ledger is up to date here, and it keeps the record even if the line has
        been damaged since.
        """
        records = [{"event": "anomaly"} | asdict(anomaly) for anomaly in self.ledger.anomalies(plan.name)]
        left_out, most = skipped_ranges(records), self.schedule.anomalies.most
        if (times := rollbacks_in_place(records)) > most:
            raise RunFailed(
                f"stage {plan.name} was rolled back to step {left_out[-1][0]} {times} times, skipping more data each "
                f"time, and never reached its next checkpoint (anomalies.most = {most}); try a lower "
                f"learning_rate.peak (now {self.schedule.learning_rate.peak}) or more warm-up, under another --name"
            )
        return left_out

    def _initial(self, plan: StagePlan) -> Path | None:
        """The checkpoint that a stage or a release starts from, grown if it is to grow; None for a new model."""
        if plan.branch_of:
            return self.stage(self.plans[plan.index]).final
        if plan.index:
            return self._grow(plan) if plan.is_grown else self._train_on(plan)
        return self._started(plan, self.start) if self.start else None

    def _started(self, plan: StagePlan, start: Start) -> Path:
        """The first stage's `initial/`, made from the start checkpoint."""
        stage = self.stage(plan)
        if not self._whole(stage.initial):
            start.tell(read_dataset_manifest(self.dataset), self.screen.message)
            if plan.is_grown:
                self.screen.growing(plan)
            start.write_initial(plan, stage)
            if plan.is_grown:
                self.screen.grown(plan, read_manifest(stage.initial))
        if not started_from(stage.initial, start.base):
            raise RunFailed(f"{stage.initial} was not made from {start.path}; move it away and run again")
        return stage.initial

    def _grow(self, plan: StagePlan) -> Path:
        """The stage's `initial/`: the previous stage's `final/`, expanded."""
        initial = self.stage(plan).initial
        previous = self.stage(self.plans[plan.index - 1]).final
        if not self._whole(initial):
            self.screen.growing(plan)
            self.screen.grown(plan, grow(self.schedule, plan, previous, initial))
        *_, before, _ = read_manifest(initial).lineage.history
        if before.hash != history_of(read_manifest(previous))[-1].hash:
            raise RunFailed(f"{initial} was not grown from {previous}; move it away and run again")
        return initial

    def _train_on(self, plan: StagePlan) -> Path:
        """The `initial/` of a stage that does not grow: the previous stage's `final/` itself."""
        initial, previous = self.stage(plan).initial, self.stage(self.plans[plan.index - 1]).final
        if not self._whole(initial):
            link_checkpoint(previous, initial)
        here, there = (history_of(read_manifest(checkpoint))[-1].hash for checkpoint in (initial, previous))
        if here != there:
            raise RunFailed(f"{initial} is not {previous}; move it away and run again")
        return initial

    def _micro_batch_size(self, plan: StagePlan) -> int:
        """Sequences per forward pass on one device, as `growctl plan` shows it for the same devices."""
        devices = run_devices(self.schedule, self.machines)
        return planned_micro_batch(self.schedule, plan, self.num_devices(plan), devices)

    def _spec(
        self, plan: StagePlan, attempt: int, initial: Path | None, resume: Path | None, left_out: tuple[LeftOut, ...]
    ) -> TrainSpec:
        schedule = self.schedule
        end_of_text = read_dataset_manifest(self.dataset).end_of_text_id if schedule.data.document_mask else 0
        manifest: Manifest | None = read_manifest(initial) if initial else None
        return worker_spec(
            schedule,
            plan,
            attempt=attempt,
            # Absolute paths: on another machine or in a job, the worker has another working directory.
            directory=str(self.stage(plan).directory.absolute()),
            dataset=str(self.dataset.absolute()),
            model=attending(schedule, manifest.model if manifest else plan.model, end_of_text),
            initial=str(initial.absolute()) if initial else None,
            resume=str(resume.absolute()) if resume else None,
            samples_seen=first_sample(self._position(plan, manifest), plan.batch.sequence_length),
            mixture=self._mixture(plan),
            when_exhausted=schedule.data.when_exhausted,
            left_out=left_out,
            made_in=f"{self.request.name}/{plan.name}",
            micro_batch_size=self._micro_batch_size(plan),
            save_request=str(self.stage(plan).save_request(attempt).absolute()),
            launched_at=time.time(),
        )

    def _position(self, plan: StagePlan, initial: Manifest | None) -> int:
        """The position in the data from which the stage continues."""
        if initial and self.start and plan.index == 0 and not plan.branch_of:
            return self.start.position(read_dataset_manifest(self.dataset))[0]
        return position_after(initial) if initial else 0

    def _mixture(self, plan: StagePlan) -> tuple[MixtureSpan, ...]:
        """The weights of a mixture's sources up to this stage, from the positions at which the stages really began."""
        if not self.schedule.data.mixture:
            return ()
        start = self.start.position(read_dataset_manifest(self.dataset))[0] if self.start else 0
        before = self.start.base.mixture if self.start and start else ()
        finished = [read_manifest(self.stage(each).final) for each in self.plans[: plan.index]]
        return mixture_spans(self.schedule, [start, *map(position_after, finished)], before)

    def _attempt(self, plan: StagePlan, spec: TrainSpec, history: StageHistory, books: StageBooks) -> Outcome:
        """Makes one attempt at a stage, keeping the screen and the ledger up to date."""
        stage = self.stage(plan)
        if spec.attempt > 1:
            start = f"from {Path(spec.resume).name}" if spec.resume else "from the start"
            self.screen.message(f"stage {plan.name}: resuming {start} (attempt {spec.attempt})")
        write_file(stage.spec, spec.model_dump_json(indent=1).encode())
        launch = self.machines.launch(stage.spec, self.schedule.launch.nodes_of(plan.index), spec.attempt)
        self.screen.stage_started(plan)

        def on_records(new: list[Record]) -> None:
            books.add(new)
            for record in new:
                self.screen.record(plan, record)
                self._check_growth(plan, record)
            if any(record["event"] != "train" for record in new):
                books.sync()

        try:
            return Attempt(spec, launch, history, self.schedule.launch.grace, on_records, self.screen.message).run()
        finally:
            if history.interrupted:  # records may be lost, or in the ledger without the books knowing it
                history, books = self._from_the_start(plan)
            self._catch_up(plan, history, books)
            books.sync(attempt_over=True)

    def _check_growth(self, plan: StagePlan, record: Record) -> None:
        """Prints a message if a growth moved the validation loss."""
        if record.get("point") == "after_growth" and plan.is_grown:
            before = self._loss_before(plan, record["num_tokens"])
            if message := growth_message(plan, self.stage(plan), before, record["loss"]):
                self.screen.message(message)

    def _loss_before(self, plan: StagePlan, num_tokens: int) -> float | None:
        """The validation loss before a stage's growth, on the same `num_tokens`; None if it is not known."""
        if plan.index:
            known = self.ledger.evaluations(self.plans[plan.index - 1].name)
            return known[-1].loss if known and known[-1].num_tokens == num_tokens else None
        base = self.ledger.run().base
        return base.validation_loss if base and base.validation_tokens == num_tokens else None

    def _whole(self, checkpoint: Path) -> bool:
        """Whether `checkpoint` exists and is intact; sets a broken one aside with a message."""
        return whole_or_set_aside(checkpoint, self.screen.verbatim) is not None
