"""The worker: trains one stage of a run on a DeepSpeed engine.

Each rank is one, started by growctl itself, on other machines by DeepSpeed's runner or srun:

    python -m stages.train.worker SPEC.json

The worker follows its `TrainSpec`; the runner decides what runs next (growctl/run/runner.py). The worker reports
through metrics.jsonl and writes step_*/ and final/ into the stage's directory.
"""

import math
import statistics
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from model.errors import Failure
from model.initialization import build_model
from model.language_model import LanguageModel
from model.precision import Precision
from model.tokenformer_config import TokenformerConfig
from stages.checkpoint.directory import finish_directory, prune, remove_converted
from stages.checkpoint.disk_full import raise_when_full
from stages.checkpoint.lineage import Lineage, TrainingCost, TrainingRecord
from stages.checkpoint.manifest import Manifest, manifest_hash, read_manifest
from stages.checkpoint.parameters import fill_model
from stages.engine.deepspeed_api import DeepSpeedEngine
from stages.engine.devices import device_name
from stages.engine.engine import build_engine, choose_precision
from stages.engine.engine_state import (
    drop_rejected_gradient,
    engine_states,
    group_steps,
    load_engine,
    load_states,
    save_engine,
    save_parameters,
    start_moments,
    takes_norm_of_updates,
)
from stages.engine.memory import engine_checkpoint_bytes, parameters_checkpoint_bytes
from stages.engine.rank_process import run_rank
from stages.metrics import MetricsWriter, Record
from stages.process.lifeline import listen_for_save_requests, save_requests
from stages.process.watchdog import Watchdog
from stages.spec import TrainSpec, progress_at
from stages.stage_dir import StagePaths
from stages.train.anomaly_guard import Guard
from stages.train.rank_data import Batch, RankData
from stages.train.text_data import TextData
from stages.train.training_history import TrainingHistory
from stages.train.usage import UsageMeter

LOOK_SECONDS = 0.5
"""About this often, the ranks check together whether one of them was asked to save and exit."""


def task_data(spec: TrainSpec, rank: int, world_size: int, device: torch.device) -> RankData:
    """What this rank reads of the dataset of a stage, as the model's task asks for."""
    if spec.model.image is None:
        return TextData(spec, rank, world_size, device)
    from stages.train.image_data import ImageData  # needs the extra for images

    return ImageData(spec, rank, world_size, device)


class TrainingFailed(Failure):
    """Training cannot continue; the message is one sentence for the user."""


class Worker:
    """One rank of one attempt at a stage."""

    def __init__(self, spec: TrainSpec, device: torch.device) -> None:
        self.spec = spec
        self.device = device
        self.paths = StagePaths(Path(spec.directory))
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.resumed = read_manifest(Path(spec.resume)) if spec.resume else None
        saved = self.resumed.precision if self.resumed else None
        self.precision: Precision = saved or choose_precision(spec.precision, device)
        self.data = task_data(spec, self.rank, self.world_size, device)
        self.metrics = MetricsWriter(self.paths.metrics, spec.attempt) if self.rank == 0 else None
        self.progress: tuple[float, float] | None = None
        self.evaluated = TrainingRecord()  # its losses are those of this stage so far
        self.guard = Guard(spec)
        self.look_every = 1
        listen_for_save_requests()
        self.watchdog = Watchdog(self.paths.stack_file(spec.attempt, self.rank), spec.hang_seconds)
        self.history = TrainingHistory(spec, self.data.fingerprint, self.precision)
        self.meter = UsageMeter(device)
        self._started = time.monotonic() - max(0.0, time.time() - spec.launched_at)

    def run(self) -> None:
        """Trains from the stage's start, or from the checkpoint to resume, until `final/` is written or a stop."""
        spec, resumed = self.spec, self.resumed
        step = resumed.step if resumed else 0
        self.record(
            "start",
            step,
            device=device_name(self.device),
            num_devices=self.world_size,
            precision=self.precision,
            zero_stage=spec.zero_stage,
            resumed_from=resumed and step,
            converted=resumed is not None and resumed.kind == "parameters",
            recomputed_step_flops=spec.recomputed_step_flops,
            peak_flops=spec.peak_flops,
            price_per_device_hour=spec.price_per_device_hour,
        )
        self.record_usage(step)
        engine = self.start_engine()
        with closing(self.data.micro_batches(step)) as micro_batches:
            step, over = self.train(engine, step, micro_batches)
        if over:
            self.finish(engine, step)
        self.watchdog.end()

    def train(self, engine: DeepSpeedEngine, step: int, micro_batches: Iterator[Batch]) -> tuple[int, bool]:
        """Trains from `step` on, logging, evaluating and saving; returns the steps done and whether the stage is over.

        It is not over if the workers were asked to save and exit (they have then saved the last step), or if the stage
        rolls back (the rollback is then the last record).
        """
        spec = self.spec
        last_logged, first = time.monotonic(), step
        over = self.flat_enough(step)  # true if the resumed checkpoint is of the very step that ended the stage
        while step < spec.num_steps and not over:
            loss = self.train_step(engine, step, micro_batches)
            step += 1
            if engine.was_step_applied():
                self.guard.passed(loss)
            elif not self.rejected(engine, step, loss):
                return step, False
            # Log before a checkpoint too, so that the log lines of a resumed attempt cover the same steps.
            every = (spec.log_every, spec.checkpoint_every, spec.evaluate_every, spec.num_steps)
            if any(step % interval == 0 for interval in every):
                self.log(engine, step, (step - first) / (time.monotonic() - last_logged))
            if step % spec.evaluate_every == 0 and step < spec.num_steps:
                engine.eval()
                found = self.evaluate(engine, step, "interval", self.precision)
                engine.train()
                self.evaluated.losses.append((step, found["loss"]))
                if "own_context_loss" in found:
                    self.evaluated.own_context_losses.append((step, found["own_context_loss"]))
                over = self.flat_enough(step)
            due = (step % spec.checkpoint_every == 0 and step < spec.num_steps) or step == spec.trunk_step
            if due:
                self.save(engine, step)
            if step % self.look_every == 0 and step < spec.num_steps and not over and self.asked_to_leave():
                if not due:
                    self.save(engine, step)
                self.record("saved", step, path=self.paths.step(step).name)
                return step, False
            if not self.guard.pending:
                last_logged, first = time.monotonic(), step  # evaluating and saving do not count as training time
        return step, True

    def asked_to_leave(self) -> bool:
        """Whether any rank was asked to save and exit. Collective: all ranks get the answer at the same step."""
        asked = torch.tensor(float(bool(save_requests)), device=self.device)
        dist.all_reduce(asked, dist.ReduceOp.MAX)
        return bool(asked.item())

    def flat_enough(self, step: int) -> bool:
        """Whether the trigger ends the stage at `step`. All ranks decide alike, from the recorded losses alone."""
        trigger, losses = self.spec.trigger, self.evaluated.trigger_losses
        if trigger is None or not losses or losses[-1][0] != step:
            return False
        slope = trigger.fitted(losses, self.spec.settled_step)
        over = slope is not None and slope < trigger.slope
        self.record("trigger", step, slope=slope, threshold=trigger.slope, fired=over)
        return over

    def start_engine(self) -> DeepSpeedEngine:
        """Builds the engine and loads the weights, moments and steps that this attempt starts from."""
        spec = self.spec
        start = Path(spec.resume or spec.initial or "")
        manifest = self.resumed or (read_manifest(start) if spec.initial else None)
        config = self.resumed.model if self.resumed else spec.model  # the first step sets ramps; biases remain
        model = build_model(config, seed=spec.seed if manifest is None else None, device=self.device)
        if manifest and manifest.kind == "parameters":
            fill_model(model, start, manifest)
            if not spec.resume:
                point = "after_growth" if manifest.lineage.operation == "expand" else "start"
                self.record_usage(0)
                self.evaluate(model, 0, point, "fp32")
        engine = build_engine(model, spec, self.precision)
        if manifest is None:
            start_moments(engine, {})
        elif manifest.kind == "engine":
            load_engine(engine, start)
        else:
            load_states(engine, start, manifest)
        if manifest and spec.resume:
            record = manifest.lineage.training or TrainingRecord()
            self.evaluated = record.model_copy(deep=True)
            self.guard.restore(record, self.device)
        return engine

    def train_step(self, engine: DeepSpeedEngine, step: int, micro_batches: Iterator[Batch]) -> Tensor:
        """Runs one optimizer step and returns this rank's mean loss, a float64 scalar on the device.

        Each micro-batch runs forward and backward, then the engine makes the update. Consumes the step's share of
        `micro_batches` and does not itself wait for the device.
        """
        spec = self.spec
        learning_rate = spec.learning_rate.at(step)
        for group in engine.optimizer.param_groups:
            scale = spec.optimizer.muon_lr_scale if group["use_muon"] else 1.0
            group["lr"] = learning_rate * scale * spec.rule(group["generation"]).factor(step)
        progress = progress_at(step, spec.ramp_steps), progress_at(step, spec.anneal_steps or 0)
        if progress != self.progress and isinstance(spec.model, TokenformerConfig):
            engine.module.set_scales(self.spec.model_after(step + 1))
            self.progress = progress
        num_micro_batches = spec.batch_size // (spec.micro_batch_size * self.world_size)
        loss = torch.zeros((), dtype=torch.float64, device=self.device)
        for number, (inputs, targets) in enumerate(islice(micro_batches, num_micro_batches), 1):
            self.watchdog.beat()
            micro_loss = engine(inputs, targets)
            loss += micro_loss.detach() / num_micro_batches
            engine.backward(self.guard.judged(micro_loss, loss) if number == num_micro_batches else micro_loss)
            engine.step()
        engine.module.balance(dist.all_reduce)
        return loss

    def rejected(self, engine: DeepSpeedEngine, step: int, loss: Tensor) -> bool:
        """Records that the update of `step`, counted from 1, was rejected; returns whether training continues after it.

        Raises TrainingFailed if the policy stops the run.
        """
        drop_rejected_gradient(engine)
        anomaly = self.guard.verdict(step, loss)
        self.record("anomaly", step, **anomaly)
        if anomaly["action"] == "stop":
            raise TrainingFailed(self.guard.reason(step, anomaly))
        if anomaly["action"] == "rollback" and self.metrics:
            self.metrics.sync()
        return anomaly["action"] == "skip"

    def evaluate(self, model: LanguageModel | DeepSpeedEngine, step: int, point: str, precision: str) -> Record:
        """Evaluates a plain model or the engine after `step` steps; records and returns the losses. Collective."""

        def run(*inputs: Tensor) -> Tensor:
            self.watchdog.beat()
            return model(*inputs)

        found = self.data.evaluation(run, step)
        self.record("evaluation", step, point=point, precision=precision, **found)
        return found

    def log(self, engine: DeepSpeedEngine, step: int, steps_per_second: float) -> None:
        """Records the mean training loss, over all ranks, of the updates made since the last log line."""
        times = torch.tensor([steps_per_second, self.data.take_wait_seconds()], dtype=torch.float64).to(self.device)
        losses_and_times = torch.stack([*self.guard.pending, *times.unbind()])
        dist.all_reduce(losses_and_times)
        *losses, mean_speed, waited = (losses_and_times / self.world_size).tolist()
        self.look_every = max(1, int(LOOK_SECONDS * mean_speed))
        self.guard.learn(step, losses)
        tokens_per_step = self.spec.batch_size * self.spec.sequence_length
        norm = None if takes_norm_of_updates(engine) else engine.get_global_grad_norm()
        self.record_usage(step)
        self.record(
            "train",
            step,
            loss=statistics.fmean(losses) if losses else None,
            learning_rate=self.spec.learning_rate.at(step - 1),
            gradient_norm=None if norm is None or not math.isfinite(norm) else float(norm),
            tokens_seen=step * tokens_per_step,
            tokens_per_second=round(steps_per_second * tokens_per_step, 1),
            data_wait_seconds=round(waited, 3),
        )

    def save(self, engine: DeepSpeedEngine, step: int) -> None:
        """Saves an engine checkpoint of this step, then deletes those that the retention rules do not keep.

        Raises DiskFull if it does not fit on the disk; the partial files are deleted.
        """
        spec = self.spec
        path = self.paths.step(step)
        lineage = Lineage(
            operation="train", training=self.training_record(), history=self.history.at(step, self.cost(step))
        )
        fields = {**self.manifest_fields(engine, step), "lineage": lineage}
        num_bytes = engine_checkpoint_bytes(spec.model, spec.optimizer.name, spec.zero_stage, self.precision)
        self.watchdog.beat()
        if self.metrics:
            self.metrics.sync()
        with raise_when_full(path, num_bytes):
            save_engine(engine, path, fields)
        self.record_usage(step)
        self.record("checkpoint", step, path=path.name)
        if self.rank == 0:
            trunk = () if spec.trunk_step is None else (spec.trunk_step,)
            prune(self.paths.directory, spec.keep_checkpoints, spec.keep_every_steps, spec.checkpoint_every, trunk)
            remove_converted(self.paths.directory, path)

    def finish(self, engine: DeepSpeedEngine, step: int) -> None:
        """Writes the engine's parameters to `final/`, measures their loss in float32, then makes `final/` visible.

        Raises DiskFull if it does not fit on the disk; the partial files are deleted.
        """
        spec, final = self.spec, self.paths.final
        with raise_when_full(final, parameters_checkpoint_bytes(spec.model, spec.optimizer.name)):
            plain = build_model(engine.module.balanced(spec.model_after(step)), device=self.device)
            targets = dict(plain.named_parameters())

            def states() -> Any:
                for name, state in engine_states(engine):
                    self.watchdog.beat()
                    targets[name].data.copy_(state.fp32)
                    yield name, state

            files = save_parameters(final, states(), tokenizer=self.data.tokenizer)
            self.record_usage(step)
            found, record = self.evaluate(plain, step, "final", "fp32"), self.training_record()
            self.record_usage(step)
            self.record("end", step)
            if self.metrics:
                self.metrics.sync()
                parent = manifest_hash(Path(spec.initial)) if spec.initial else None
                measured = {"validation_loss": found["loss"], "validation_tokens": found["num_tokens"]}
                measured |= {"own_context_loss": found.get("own_context_loss"), "by_source": found["by_source"]}
                record = record.model_copy(update=measured)
                history = self.history.at(step, self.cost(step))
                lineage = Lineage(operation="train", parent=parent, training=record, history=history)
                fields = self.manifest_fields(engine, step)
                finish_directory(final, Manifest(kind="parameters", files=files, lineage=lineage, **fields))
        dist.barrier()

    def training_record(self) -> TrainingRecord:
        """What a checkpoint stores besides tensors, for training that continues from it. Collective."""
        return TrainingRecord(
            stage=self.spec.stage,
            losses=self.evaluated.losses,
            own_context_losses=self.evaluated.own_context_losses,
            pending=self.guard.pending_of_ranks(),
            guard=self.guard.state(),
            left_out=list(self.spec.left_out),
            evaluations=self.spec.evaluations,
        )

    def cost(self, step: int) -> TrainingCost:
        """The cost of the model after `step` steps, from its first ancestor on."""
        return self.history.cost(step, self.resumed, (time.monotonic() - self._started) * self.world_size)

    def manifest_fields(self, engine: DeepSpeedEngine, step: int) -> dict[str, Any]:
        """The fields of a manifest after `step` steps, except kind, files and lineage."""
        return {
            "model": engine.module.balanced(self.spec.model_after(step)),
            "step": step,
            "group_steps": group_steps(engine),
            **self.data.manifest_fields(step),
            "zero_stage": self.spec.zero_stage,
            "offload": self.spec.offload,
            "precision": self.precision,
        }

    def record(self, event: str, step: int, **values: Any) -> None:
        """Writes one line of metrics.jsonl; only rank 0 does."""
        if self.metrics:
            self.metrics.write(event, step, time.monotonic() - self._started, **values)

    def record_usage(self, step: int) -> None:
        """Writes what all ranks have used so far as a line of metrics.jsonl. Collective."""
        self.record("usage", step, **self.meter.read())


def train(spec: Path, device: torch.device) -> None:
    """Trains the stage that the spec file describes, as one of its ranks."""
    parsed = TrainSpec.model_validate_json(spec.read_bytes())
    with raise_when_full(Path(parsed.directory)):
        Worker(parsed, device).run()


if __name__ == "__main__":
    run_rank(train)
