"""The only place that decides what happens next. It reads what is on disk, so running again is resuming."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from growctl.controls import plan_controls
from growctl.launch import local_devices, start_workers, stop_workers
from growctl.ledger import Ledger, RunEntry, StageEntry
from growctl.plan import StagePlan, plan_stages
from growctl.schedule import ScheduleError, parse_schedule
from growctl.schema import Schedule
from growctl.screen import Screen
from model.config import TransformerConfig
from stages.data import EvaluationWindows, TrainingSamples
from stages.manifest import (
    CheckpointError,
    Manifest,
    manifest_hash,
    newest_checkpoint,
    read_manifest,
    set_aside,
    verify_checkpoint,
    write_file,
)
from stages.metrics import MetricsReader, Record
from stages.prepare import DataError, prepare, read_dataset_manifest, verify_dataset
from stages.spec import SlopeTrigger, TrainSpec

POLL_SECONDS = 0.2
EXACT_GROWTH = 1e-5
"""Nats by which the validation loss may differ right after a growth: the rounding of float32."""

DATASETS = ".datasets"
"""Prepared datasets lie here below the runs directory, shared by its runs; no run's name starts with a dot."""


class RunError(ValueError):
    """A run that cannot be started or gone on with as asked: the user's to mend, exit code 2."""


class RunFailed(RuntimeError):
    """Training failed: exit code 1."""


@dataclass(frozen=True)
class RunRequest:
    """One run: a ladder, or a control of one."""

    name: str
    schedule: Schedule
    label: str
    """The schedule as the user named it."""

    control: str | None = None
    control_of: str | None = None


def run(schedule: Schedule, *, label: str, runs_dir: Path, name: str | None, controls: bool, screen: Screen) -> None:
    """Runs the schedule's ladder and then its controls, or goes on where an earlier execution stopped.

    Raises RunError (and the other ValueErrors of unusable input) before anything is written, RunFailed when a stage
    fails.
    """
    ladder = name or schedule.name
    assert ladder is not None
    schedule = schedule.model_copy(update={"name": ladder})
    ladder_request = RunRequest(ladder, schedule, label)
    micro = schedule.launch.micro_batch_size
    micro_batches = schedule.training.batch_size // (1 if micro == "auto" else micro)
    devices = local_devices(schedule.launch.devices, micro_batches)

    def control_requests(steps_done: list[int]) -> list[RunRequest]:
        planned = plan_controls(schedule, steps_done) if controls else []
        return [RunRequest(c.name, c.schedule, label, c.kind, ladder) for c in planned]

    done = _steps_done(schedule, runs_dir / ladder)
    for request in (ladder_request, *control_requests(done)):
        _check_batch(request, devices[0])
        # Where a slope decides when a stage is over, a control's budget is known once all are.
        if request.control is None or schedule.growth.when == "fixed" or len(done) == len(schedule.stages):
            _check_same_run(request, runs_dir / request.name)
    Execution(ladder_request, runs_dir, devices, screen).run()
    for request in control_requests(_steps_done(schedule, runs_dir / ladder)):
        _check_same_run(request, runs_dir / request.name)
        Execution(request, runs_dir, devices, screen).run()


def stage_directory(directory: Path, index: int, name: str) -> Path:
    """Where a stage of the run in `directory` keeps everything."""
    return directory / "stages" / f"{index}-{name}"


def _steps_done(schedule: Schedule, directory: Path) -> list[int]:
    """Steps of the stages that are over, oldest first."""
    steps: list[int] = []
    for index, stage in enumerate(schedule.stages):
        final = stage_directory(directory, index, stage.name) / "final"
        if not final.exists():
            break
        try:
            steps.append(read_manifest(final).step)
        except CheckpointError:
            break  # it will be set aside, with a message, when its turn comes
    return steps


class Execution:
    """One execution of one run."""

    def __init__(self, request: RunRequest, runs_dir: Path, devices: tuple[int, bool], screen: Screen) -> None:
        self.request = request
        self.schedule = request.schedule
        self.runs_dir = runs_dir
        self.directory = runs_dir / request.name
        self.plans = plan_stages(request.schedule)
        self.num_devices, self.gpus = devices
        self.screen = screen
        self.dataset = Path()
        self.ledger: Ledger

    def run(self) -> None:
        """Prepares the data, then takes each stage to its `final/`, growing in between."""
        self.screen.run_started(self.request.name, self.request.control, self.plans)
        dataset = None if (self.directory / "ledger.db").exists() else self._prepare()
        with hold(self.directory):
            # The schedule first: it is by this file that the directory is known for a run's.
            write_file(self.directory / "schedule.yaml", schedule_yaml(self.schedule).encode())
            with Ledger.open(self.directory / "ledger.db") as self.ledger:
                self.dataset = dataset or self._known_dataset()
                self._open_books()
                for index in range(len(self.plans)):
                    self._stage(self.plans[index])
                    self.plans = plan_stages(self.schedule, _steps_done(self.schedule, self.directory)[: index + 1])
        self.screen.run_finished()

    def stage_directory(self, plan: StagePlan) -> Path:
        """Where a stage keeps everything."""
        return stage_directory(self.directory, plan.index, plan.name)

    def _known_dataset(self) -> Path:
        """The dataset that the run began with, where it is whole; else the one that the schedule describes."""
        if self.ledger.stages():
            entry = self.ledger.run()
            dataset = Path(entry.dataset)
            try:
                if verify_dataset(dataset, hashes=False).fingerprint == entry.dataset_fingerprint:
                    return dataset
            except DataError as error:
                self.screen.message(f"{error}; preparing it again")
        return self._prepare()

    def _prepare(self) -> Path:
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
        return dataset

    def _open_books(self) -> None:
        manifest = read_dataset_manifest(self.dataset)
        entry = RunEntry(
            name=self.request.name,
            schedule=self.request.label,
            control=self.request.control,
            control_of=self.request.control_of,
            seed=self.schedule.seed,
            dataset=str(self.dataset),
            dataset_fingerprint=manifest.fingerprint,
        )
        self.ledger.record_run(entry, [_stage_entry(plan) for plan in plan_stages(self.schedule)])

    def _stage(self, plan: StagePlan) -> None:
        directory = self.stage_directory(plan)
        records = list(MetricsReader(directory / "metrics.jsonl"))
        self.ledger.sync(plan.name, records, attempt_over=True)
        if self._whole(directory / "final"):
            self.screen.stage_finished(plan, records)
            return
        directory.mkdir(parents=True, exist_ok=True)
        initial = self._grow(plan) if plan.index else None
        resume = newest_checkpoint(directory, self.screen.message)
        if resume is None:
            attempt_start = "from the start"
        else:
            attempt_start = f"from {resume.name}"
            self._check_world(resume)
        last = max((record["attempt"] for record in records), default=0)
        attempt = 1 + max(last, self.ledger.last_attempt(plan.name))
        if attempt > 1:
            self.screen.message(f"stage {plan.name}: resuming {attempt_start} (attempt {attempt})")
        spec = self._spec(plan, attempt, initial, resume)
        write_file(directory / "spec.json", spec.model_dump_json(indent=1).encode())
        self._train(plan, directory, records)
        if not self._whole(directory / "final"):
            raise RunFailed(
                f"stage {plan.name} ended without a whole {directory / 'final'}; see {directory / 'log.txt'}"
            )

    def _grow(self, plan: StagePlan) -> Path:
        """The stage's `initial/`: the previous stage's `final/`, expanded."""
        initial = self.stage_directory(plan) / "initial"
        previous = self.stage_directory(self.plans[plan.index - 1]) / "final"
        if not self._whole(initial):
            self.screen.growing(plan)
            self.screen.grown(plan, self._expanded(plan, previous, initial))
        if read_manifest(initial).lineage.parent != manifest_hash(previous):
            raise RunFailed(f"{initial} was not grown from {previous}; move it away and run again")
        return initial

    def _expanded(self, plan: StagePlan, previous: Path, initial: Path) -> Manifest:
        from stages.expand import expand, expand_transformer

        growth, seed = self.schedule.growth, self.schedule.seed
        if isinstance(plan.model, TransformerConfig):
            assert growth.operator is not None
            return expand_transformer(
                previous, initial, plan.model, growth.operator, noise=growth.copy_noise, seed=seed
            )
        return expand(
            previous,
            initial,
            attention_tokens=plan.attention_tokens,
            ffn_tokens=plan.ffn_tokens,
            policy=growth.policy(),
            seed=seed,
        )

    def _trigger(self, plan: StagePlan) -> SlopeTrigger | None:
        """What may end the stage early: there must be something to grow into."""
        growth = self.schedule.growth
        if growth.slope is None or plan.index + 1 == len(self.plans):
            return None
        rules = growth.rules(plan.index, plan.num_steps) if plan.index else ()
        # Until then the loss is no measure: rates, ramps or tau still move. What is frozen for good does not wait.
        resting = [rule.warmup_steps + rule.frozen_steps for rule in rules if rule.frozen_steps < plan.num_steps]
        warmup = plan.learning_rate.warmup_steps - plan.learning_rate.first_step
        return SlopeTrigger(
            slope=growth.slope,
            window=growth.slope_window,
            step_flops=plan.step_flops.total,
            first_step=max(0, warmup, plan.ramp_steps, plan.anneal_steps or 0, *resting),
        )

    def _spec(self, plan: StagePlan, attempt: int, initial: Path | None, resume: Path | None) -> TrainSpec:
        schedule = self.schedule
        batch_size, micro = schedule.training.batch_size, schedule.launch.micro_batch_size
        manifest: Manifest | None = read_manifest(initial) if initial else None
        return TrainSpec(
            stage=plan.name,
            attempt=attempt,
            directory=str(self.stage_directory(plan)),
            dataset=str(self.dataset),
            model=manifest.model if manifest else plan.model,
            initial=str(initial) if initial else None,
            resume=str(resume) if resume else None,
            seed=schedule.seed,
            samples_seen=manifest.samples_seen if manifest else 0,
            num_steps=plan.num_steps,
            batch_size=batch_size,
            micro_batch_size=batch_size // self.num_devices if micro == "auto" else micro,
            sequence_length=schedule.training.sequence_length,
            learning_rate=plan.learning_rate,
            optimizer=schedule.optimizer.optimizer(),
            generations=schedule.growth.rules(plan.index, plan.num_steps) if plan.index else (),
            ramp_steps=plan.ramp_steps,
            anneal_steps=plan.anneal_steps,
            trigger=self._trigger(plan),
            zero_stage=schedule.launch.zero_stage,
            precision=schedule.training.precision,
            log_every=schedule.training.log_every,
            evaluate_every=schedule.evaluation.every,
            checkpoint_every=schedule.checkpoint.every,
            keep_checkpoints=schedule.checkpoint.keep,
            evaluation_sequences=schedule.evaluation.max_sequences,
            launched_at=time.time(),
        )

    def _train(self, plan: StagePlan, directory: Path, records: list[Record]) -> None:
        """Starts the workers and follows them to their end, keeping screen and ledger up to date."""
        log = directory / "log.txt"
        log_start = log.stat().st_size if log.exists() else 0
        reader = MetricsReader(directory / "metrics.jsonl")
        records[:] = list(reader)
        self.screen.stage_started(plan, records)
        process = start_workers(directory / "spec.json", log, self.num_devices, self.gpus)
        try:
            running = True
            while running:
                running = process.poll() is None
                new = list(reader)
                records += new
                for record in new:
                    self.screen.record(plan, record)
                    self._check_growth(plan, record)
                if any(record["event"] != "train" for record in new):
                    self.ledger.sync(plan.name, records)
                if running:
                    time.sleep(POLL_SECONDS)
        finally:
            stop_workers(process)
            self.ledger.sync(plan.name, list(MetricsReader(directory / "metrics.jsonl")), attempt_over=True)
        if process.returncode != 0 and (directory / "final").exists():
            self.screen.message(f"stage {plan.name} is complete; its workers ended with exit code {process.returncode}")
        elif process.returncode != 0:
            reason = _reason(log, log_start)
            raise RunFailed(f"stage {plan.name} failed (exit code {process.returncode}): {reason}\nfull log: {log}")
        self.screen.stage_finished(plan, records)

    def _check_growth(self, plan: StagePlan, record: Record) -> None:
        """Says so where the loss right after a growth is not the loss before it: a warning where it should be."""
        if record.get("point") != "after_growth":
            return
        before = self.ledger.evaluations(self.plans[plan.index - 1].name)[-1].loss
        jump = record["loss"] - before
        if abs(jump) <= EXACT_GROWTH:
            return
        moved = f"growing to {plan.name} moved the validation loss by {jump:+.2e} nats, from {before:.6f}"
        if read_manifest(self.stage_directory(plan) / "initial").lineage.details.get("preserves"):
            moved = (
                f"WARNING: {moved}; it should keep it to {EXACT_GROWTH:g}. "
                f"Please report this with {self.stage_directory(plan)}"
            )
        self.screen.message(moved)

    def _whole(self, checkpoint: Path) -> bool:
        """Whether `checkpoint` is there and whole; a broken one is set aside with a message."""
        if not checkpoint.exists():
            return False
        try:
            verify_checkpoint(checkpoint)
        except CheckpointError as error:
            self.screen.message(f"{error}; moved to {set_aside(checkpoint).name}")
            return False
        return True

    def _check_world(self, resume: Path) -> None:
        manifest = read_manifest(resume)
        if (manifest.world_size, manifest.zero_stage) != (self.num_devices, self.schedule.launch.zero_stage):
            raise RunError(
                f"{resume} was saved by {manifest.world_size} device(s) at ZeRO {manifest.zero_stage} and "
                f"within a stage resumes only so; set launch.devices={manifest.world_size} "
                f"launch.zero_stage={manifest.zero_stage} until the stage is done"
            )


@contextmanager
def hold(directory: Path) -> Iterator[None]:
    """Keeps a run directory for this process; RunError where another `growctl run` has it. Ends with the process."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            raise RunError(f"{directory} is in use by another growctl (process {lock.read().strip()})") from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def _check_same_run(request: RunRequest, directory: Path) -> None:
    """RunError where `directory` is something else's, or its schedule differs in anything but `launch`."""
    from omegaconf import OmegaConf
    from yaml import YAMLError

    path = directory / "schedule.yaml"
    if not path.exists():
        if directory.exists() and any(not p.name.startswith(".") for p in directory.iterdir()):
            raise RunError(f"{directory} exists and is not a growctl run; choose another name with --name")
        return
    try:
        old = parse_schedule(OmegaConf.to_container(OmegaConf.load(path)), label=str(path), default_name=request.name)
    except (ScheduleError, OSError, YAMLError, UnicodeDecodeError) as error:
        raise RunError(f"{path}, the run's own schedule, cannot be read: {error}") from error
    for key, was, now in _differences(_comparable(old), _comparable(request.schedule)):
        raise RunError(
            f"{key} = {now!r}, but the run in {directory} was started with {was!r}; "
            "give this one another name with --name, or put the value back"
        )


def _comparable(schedule: Schedule) -> dict[str, Any]:
    data = schedule.model_dump(exclude={"launch", "controls"})
    del data["data"]["workers"], data["data"]["approximate_tokens"]
    return data


def _differences(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old | new:
            yield from _differences(old.get(key), new.get(key), f"{path}.{key}" if path else key)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for i, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from _differences(before, after, f"{path}.{i}")
    elif old != new:
        yield path, old, new


def _check_batch(request: RunRequest, num_devices: int) -> None:
    batch, micro = request.schedule.training.batch_size, request.schedule.launch.micro_batch_size
    share = num_devices * (1 if micro == "auto" else micro)
    if batch % share:
        per_pass = "" if micro == "auto" else f" x launch.micro_batch_size {micro}"
        raise RunError(
            f"training.batch_size = {batch}: must be a multiple of the {num_devices} devices{per_pass}, {share}"
        )


def _stage_entry(plan: StagePlan) -> StageEntry:
    return StageEntry(
        name=plan.name,
        num_parameters=plan.num_parameters,
        num_embedding_parameters=plan.num_embedding_parameters,
        train_tokens=plan.train_tokens,
        num_steps=plan.num_steps,
        tokens_per_step=plan.tokens_per_step,
        step_flops=plan.step_flops,
        evaluation_flops_per_token=plan.evaluation_flops_per_token,
    )


def schedule_yaml(schedule: Schedule) -> str:
    """The schedule as a run keeps it, every default written out."""
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(OmegaConf.create(schedule.model_dump(mode="json")))


def _reason(log: Path, start: int) -> str:
    """What the worker said of its own failure, else the end of what it printed."""
    with log.open("rb") as file:
        file.seek(start)
        lines = file.read().decode(errors="replace").splitlines()
    said = [line.removeprefix("growctl: ") for line in lines if line.startswith("growctl: ")]
    if said:
        return said[-1]
    errors = [line for line in lines if "Error" in line and not line.startswith(" ")]
    return errors[-1] if errors else "\n".join(lines[-5:]) or "no output"
