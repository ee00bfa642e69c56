"""Turns the records of metrics.jsonl into what trackers show: values at places, and events."""

from dataclasses import dataclass
from typing import Any

from growctl.text.formatting import short_count
from growctl.trackers.protocol import Place, Tracker
from stages.spec import progress_at

Record = dict[str, Any]

NAMES = {
    "train": {
        "loss": "loss/training",
        "learning_rate": "learning_rate",
        "gradient_norm": "gradient_norm",
        "tokens_per_second": "tokens_per_second",
    },
    "evaluation": {"loss": "loss/validation", "perplexity": "perplexity", "bits_per_byte": "bits_per_byte"},
}
"""Names of values in trackers, by event and key of a record."""


OWN_CONTEXT = "loss/validation_at_own_context"
"""The name of the validation loss at a stage's own context, where the others are measured at another."""

RELEASE = "release/"
"""Begins the names of a release's values."""


@dataclass(frozen=True)
class Part:
    """A stage or a release: what turns its own steps into places in the run."""

    stage: str
    index: int
    num_parameters: int
    is_release: bool
    parameters_before: int | None
    """The model's size before the growth that the stage begins with; None if it begins with none."""

    first_step: int
    """Steps, data tokens and FLOPs before the stage: those of the start checkpoint and of all earlier stages."""
    first_tokens: int
    first_flops: float
    step_tokens: int
    step_flops: float
    ramp_steps: int
    anneal_steps: int

    def place(self, step: int) -> Place:
        """The place after `step` steps of the stage."""
        return Place(
            stage=self.stage,
            index=self.index,
            step=self.first_step + step,
            tokens=self.first_tokens + step * self.step_tokens,
            flops=self.first_flops + step * self.step_flops,
            num_parameters=self.num_parameters,
        )


def track_growth(tracker: Tracker, part: Part) -> None:
    """Marks the growth that a stage begins with, if it begins with one."""
    before, after = part.parameters_before, part.num_parameters
    if before is not None:
        text = f"grown to stage {part.stage}: {short_count(before)} -> {short_count(after)} parameters"
        tracker.mark(part.place(0), "growth", text, {"parameters_before": before, "parameters_after": after})


def track(tracker: Tracker, part: Part, record: Record) -> None:
    """Hands a record to a tracker. Values that are null, because they were not finite, are left out."""
    place, event = part.place(record["step"]), record["event"]
    if event in NAMES:
        found = {name: record[key] for key, name in NAMES[event].items()}
        values = {name: float(value) for name, value in found.items() if value is not None}
        if event == "train":
            values["flops_per_second"] = record["tokens_per_second"] * part.step_flops / part.step_tokens
            values |= _growing(part, record["step"])
        else:
            by_source = record["by_source"] or {}
            losses = {f"{NAMES[event]['loss']}/{name}": each["loss"] for name, each in by_source.items()}
            losses[OWN_CONTEXT] = record.get("own_context_loss")
            values |= {name: float(loss) for name, loss in losses.items() if loss is not None}
        # a release and the stage after it share the x axis, so the release has lines of its own
        lines = {f"{RELEASE}{name}": value for name, value in values.items()} if part.is_release else values
        tracker.log(place, lines)
    elif event == "anomaly":
        text = f"{record['kind']} update at step {record['step']} of stage {part.stage}: {record['action']}"
        tracker.mark(place, "anomaly", text, {} if record["value"] is None else {"loss": record["value"]})


def _growing(part: Part, step: int) -> dict[str, float]:
    """How far the new keys' ramp, or tau, had come at the last update."""
    spans = {"ramp": part.ramp_steps, "anneal": part.anneal_steps}
    return {name: progress_at(step - 1, steps) for name, steps in spans.items() if steps and step}
