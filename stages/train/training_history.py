"""The history that the checkpoints of a stage get: everything that determines what training does to the weights.

Imports no torch.
"""

import hashlib
import struct
from pathlib import Path
from typing import Any

from model.flops import training_flops_per_token
from model.precision import Precision
from model.shapes import num_parameters
from stages.checkpoint.lineage import History, TrainingCost, TrainingRecord, extended, hash_of, next_hash
from stages.checkpoint.manifest import Manifest, history_of, read_manifest
from stages.spec import TrainSpec, progress_at
from stages.train.skipped_data import consumed


def history_at_start(spec: TrainSpec) -> History:
    """The history of the model that a stage starts from: its `initial` checkpoint, or a new model."""
    if spec.initial:
        return history_of(read_manifest(Path(spec.initial)))
    return extended(
        (),
        "init",
        {"model": hash_of(spec.model.model_dump(mode="json")), "seed": spec.seed},
        num_parameters=num_parameters(spec.model),
    )


class TrainingHistory:
    """The history of a stage's checkpoints, for every number of steps.

    It covers what each update did rather than how long the stage is to last: its learning rate for each generation, its
    ramp, its data. So the checkpoints of a shorter stage are those of a longer one, as far as the two agree.
    """

    def __init__(self, spec: TrainSpec, dataset_fingerprint: str, precision: Precision) -> None:
        self.before = history_at_start(spec)
        """The history of the model that the stage starts from."""

        self.spec = spec
        newest = spec.model.newest_generation
        self._rules = [spec.rule(number) for number in range(newest + 1)]
        self._settings = _settings(spec, dataset_fingerprint, precision)
        self._settings["weight_decay"] = [rule.weight_decay for rule in self._rules]
        self._mixture = None
        if spec.mixture:
            from stages.data.samples import read_mixture  # slow: numpy

            dataset = Path(spec.dataset)
            self._mixture = read_mixture(dataset, spec.window_length, spec.mixture, spec.when_exhausted)
        self._updates, self._hashed = hashlib.sha256(), 0

    def hash_at(self, steps: int) -> str:
        """The hash of the history after `steps` updates."""
        return next_hash(self.before, "train", self._determined_by(steps))

    def at(self, steps: int, cost: TrainingCost) -> History:
        """The history after `steps` updates, with the cost up to there."""
        size, made_in = num_parameters(self.spec.model), self.spec.made_in
        return extended(
            self.before, "train", self._determined_by(steps), num_parameters=size, cost=cost, made_in=made_in
        )

    def cost(self, steps: int, resumed: Manifest | None, device_seconds: float) -> TrainingCost:
        """The cost of the model after `steps` steps, of which this attempt has made those since `resumed`."""
        start = history_of(resumed) if resumed else self.before
        new_steps, spec = steps - (resumed.step if resumed else 0), self.spec
        tokens = new_steps * spec.batch_size * spec.sequence_length
        flops = training_flops_per_token(spec.model, spec.attended_tokens or spec.sequence_length) * tokens
        return start[-1].cost.plus(new_steps, tokens, flops, device_seconds)

    def leads_on_from(self, checkpoint: Manifest) -> bool:
        """Whether `checkpoint` is what this training has made after as many steps: a stand-in for making it again."""
        history = checkpoint.lineage.history
        if not history or history[-1].operation != "train" or checkpoint.step > self.spec.num_steps:
            return False
        return history[-1].hash == self.hash_at(checkpoint.step) and self._has_decided_alike(checkpoint)

    def _has_decided_alike(self, checkpoint: Manifest) -> bool:
        """Whether the losses in `checkpoint` lead to the decisions that this training makes, up to there and beyond.

        A trigger decides at every evaluation when the stage ends, and log lines set the limit of spikes. The end of a
        shorter stage lacks the evaluation of its last step, and has a log line that a longer stage may not have there.
        """
        spec, step, record = self.spec, checkpoint.step, checkpoint.lineage.training or TrainingRecord()
        is_an_end = checkpoint.kind == "parameters" and record.is_finished and step < spec.num_steps
        if is_an_end and spec.anomalies.spikes != "ignore":
            every = (spec.log_every, spec.checkpoint_every, spec.evaluate_every)
            if all(step % interval for interval in every):
                return False
        if spec.trigger is None:
            return True
        losses = record.trigger_losses
        if record.evaluations != spec.evaluations:
            return False
        if is_an_end and step % spec.evaluate_every == 0 and not any(at == step for at, _ in losses):
            return False
        before = [loss for loss in losses if loss[0] < step]
        slopes = (spec.trigger.fitted(before[:number], spec.settled_step) for number in range(1, len(before) + 1))
        return all(slope is None or slope >= spec.trigger.slope for slope in slopes)

    def _determined_by(self, steps: int) -> dict[str, Any]:
        left_out = [list(entry) for entry in self.spec.left_out if entry[0] < steps]
        done = {"steps": steps, "updates": self._digest(steps), "left_out": left_out}
        if self._mixture is None:
            return self._settings | done
        samples = self.spec.samples_seen + consumed(steps, self.spec.left_out) * self.spec.batch_size
        windows = -(-samples * self.spec.sequence_length // self.spec.window_length)
        return self._settings | done | {"mixture": self._mixture.weights_before(windows)}

    def _digest(self, steps: int) -> str:
        """Hash of the first `steps` updates' learning rates, by generation, and shares of the ramp and of tau's way."""
        if steps < self._hashed:
            self._updates, self._hashed = hashlib.sha256(), 0
        spec = self.spec
        for step in range(self._hashed, steps):
            rate = spec.learning_rate.at(step)
            rates = [rate * rule.factor(step) for rule in self._rules]
            anneal = -1.0 if spec.anneal_steps is None else progress_at(step, spec.anneal_steps)
            values = (*rates, progress_at(step, spec.ramp_steps), anneal)
            self._updates.update(struct.pack(f"<{len(values)}d", *values))
        self._hashed = steps
        return self._updates.copy().hexdigest()


def _settings(spec: TrainSpec, dataset_fingerprint: str, precision: Precision) -> dict[str, Any]:
    """What is the same for every update."""
    anomalies = spec.anomalies.model_dump(mode="json", exclude={"most"})
    if spec.anomalies.spikes != "ignore":  # then the limit, which changes at log lines, decides which updates are made
        logged = (spec.log_every, spec.checkpoint_every, spec.evaluate_every)
        anomalies |= {"logged": list(logged), "settled_step": spec.settled_step}
    order: dict[str, Any] = {} if spec.window_length == spec.sequence_length else {"window_length": spec.window_length}
    if spec.model.image:
        order |= {"augmentation": spec.augmentation.model_dump(mode="json")}
    return order | {
        "dataset": dataset_fingerprint,
        "seed": spec.seed,
        "first_sample": spec.samples_seen,
        "sequence_length": spec.sequence_length,
        "document_end_id": spec.model.document_end_id,
        "packing": spec.packing,
        "batch_size": spec.batch_size,
        "optimizer": spec.optimizer.model_dump(mode="json"),
        "precision": precision,
        "anomalies": anomalies,
    }
