"""How far a run has come, gathered from the records that workers write, and the facts of it in words."""

from collections.abc import Iterator, Sequence
from typing import Literal

from growctl.ladder.stage_plans import StagePlan
from growctl.schedule.blocks import Schedule
from growctl.schedule.launch_block import HardwareBlock, peak_flops
from growctl.text.formatting import duration, scientific, short_count
from model.config import TokenformerConfig
from stages.counted import counted
from stages.metrics import Record
from stages.spec import progress_at

SHOWN_WAIT = 0.05
"""The share of waiting for data from which on it is shown."""


class StageProgress:
    """The progress of one stage or release. Figures are None before the first record that holds them."""

    def __init__(self, plan: StagePlan) -> None:
        self.plan = plan
        self.state: Literal["waiting", "starting", "training", "done"] = "waiting"
        self.step = 0
        self.loss: float | None = None
        """Training loss, in nats per token."""
        self.validation_loss: float | None = None
        """That of the last evaluation; None also if it was not finite."""
        self.validation_step: int | None = None
        """The step of the last evaluation; None before the first."""
        self.tokens_per_second: float | None = None
        self.data_wait_share = 0.0
        """The share of its steps' time that waited for data, since the log line before."""
        self._logged_step = 0
        self._start: Record = {}

    def update(self, record: Record) -> None:
        """Takes in one record of metrics.jsonl."""
        self.step = int(record["step"])
        if record["event"] == "start":
            self._start = record
            self._logged_step = self.step
        elif record["event"] == "train":
            self.loss = self.loss if record["loss"] is None else record["loss"]  # null: no update was made
            self.tokens_per_second = record["tokens_per_second"]
            seconds = self.seconds_of(self.step - self._logged_step)
            self.data_wait_share = min(1.0, record["data_wait_seconds"] / seconds) if seconds else 0.0
            self._logged_step = self.step
        elif record["event"] == "evaluation":
            self.validation_loss, self.validation_step = record["loss"], self.step

    @property
    def is_active(self) -> bool:
        """Whether its workers run."""
        return self.state in ("starting", "training")

    @property
    def num_steps(self) -> int:
        """Its steps: the budget, or for a finished stage the steps that it took."""
        return self.step if self.state == "done" else self.plan.num_steps

    @property
    def flops_per_second(self) -> float | None:
        """Training FLOPs per second, over all devices, at the last measured speed."""
        seconds = self.seconds_of(1)
        return self.plan.step_flops.total / seconds if seconds else None

    def seconds_of(self, num_steps: int) -> float | None:
        """Seconds that this many of its steps take at the last measured speed, without evaluations and saving."""
        if not self.tokens_per_second:
            return None
        return num_steps * self.plan.tokens_per_step / self.tokens_per_second

    @property
    def seconds_left(self) -> float | None:
        """Seconds that the stage still needs for its steps."""
        return self.seconds_of(self.num_steps - self.step)

    def mfu(self, hardware: HardwareBlock) -> float | None:
        """Model FLOPs utilisation: the share of the devices' peak that training reaches; None without a known peak."""
        if self.flops_per_second is None or not self._start:
            return None
        peak = peak_flops(hardware.flops, self._start["device"], self._start["precision"])
        return self.flops_per_second / (self._start["num_devices"] * peak) if peak else None

    @property
    def ramp(self) -> float | None:
        """The factor on the new tokens' keys at the last update, while it rises to 1; None before and after."""
        is_tokenformer = isinstance(self.plan.model, TokenformerConfig)
        return self._rising(self.plan.ramp_steps) if is_tokenformer else None

    @property
    def anneal(self) -> float | None:
        """The share of its way that tau has come at the last update, while it moves; None before and after."""
        return self._rising(self.plan.anneal_steps or 0)

    def _rising(self, over_steps: int) -> float | None:
        if self.state != "training" or self.step > over_steps or not over_steps:
            return None
        return progress_at(self.step - 1, over_steps)

    @property
    def validation_text(self) -> str:
        """The last validation loss; empty before the first evaluation."""
        if self.validation_step is None:
            return ""
        return "not finite" if self.validation_loss is None else f"{self.validation_loss:.4f}"

    @property
    def losses(self) -> str:
        """The training and the validation loss, in words."""
        training = "no training loss yet" if self.loss is None else f"training loss {self.loss:.4f}"
        if self.validation_step is None:
            return f"{training}, no validation loss yet"
        return f"{training}, last validation loss {self.validation_text} (step {self.validation_step})"


class LadderProgress:
    """The progress of a ladder, or of a control: both are stages, some followed by a release."""

    def __init__(self, name: str, control: str | None, plans: Sequence[StagePlan], schedule: Schedule | None) -> None:
        """`control`: its kind, None for a ladder. `plans`: all stages, each followed by its release. `schedule`: None
        if evaluations and hardware are not known."""
        self.name = name
        self.kind = "control" if control else "ladder"
        self.stages = {plan.name: StageProgress(plan) for plan in plans}
        self.schedule = schedule

    def plan_again(self, plans: Sequence[StagePlan]) -> None:
        """Takes in the plans of all stages and releases after one of them took other steps than planned."""
        for plan in plans:
            if plan.name in self.stages:
                self.stages[plan.name].plan = plan

    @property
    def active(self) -> StageProgress | None:
        """The stage that trains now."""
        return next((stage for stage in self.stages.values() if stage.is_active), None)

    @property
    def flops(self) -> float:
        """Training FLOPs of all steps done, of releases too; not those of steps that were repeated."""
        return sum(stage.plan.step_flops.total * stage.step for stage in self.stages.values())

    @property
    def all_flops(self) -> float:
        """Training FLOPs of all steps, done and planned."""
        return sum(stage.plan.step_flops.total * stage.num_steps for stage in self.stages.values())

    def flops_so_far(self, stage: StageProgress) -> float:
        """Training FLOPs of the model that `stage` has trained, from the first stage on: without other releases."""
        before, _ = self._around(stage)
        trunk = [part for part in before if not part.plan.branch_of]
        return sum(part.plan.step_flops.total * part.step for part in (*trunk, stage))

    @property
    def seconds_left(self) -> float | None:
        """Seconds that all stages still need, at the last measured FLOPs per second; None before the first."""
        speeds = [stage.flops_per_second for stage in self.stages.values() if stage.flops_per_second]
        return (self.all_flops - self.flops) / speeds[-1] if speeds else None

    def steps_to_growth(self, stage: StageProgress) -> tuple[StagePlan, int] | None:
        """The stage that the next growth leads to, and the steps before it; None if none comes after `stage`.

        Releases, and stages that do not grow, come before the growth.
        """
        _, later = self._around(stage)
        grown = next((part for part in later if part.plan.is_grown), None)
        if grown is None:
            return None
        return grown.plan, sum(part.num_steps - part.step for part in (stage, *later[: later.index(grown)]))

    def facts(self, stage: StageProgress | None) -> Iterator[tuple[str, str]]:
        """The facts of the run as (label, text), and of the stage that trains now, if one does."""
        if stage:
            yield "loss", self._losses(stage)
            yield "speed", self._speed(stage)
            if stage.ramp is not None:
                until = stage.plan.ramp_steps + 1
                yield "ramp", f"{stage.ramp:.2f}: the factor on the new tokens' keys, 1 from step {until} on"
            if stage.anneal is not None:
                yield "tau", f"{stage.anneal:.0%} of the way of tau (the factor on the scores) to sqrt(n)"
        left = "not known yet" if self.seconds_left is None else f"{duration(self.seconds_left)} in the {self.kind}"
        if stage and stage.seconds_left is not None:
            left = f"{duration(stage.seconds_left)} in the stage, {left}"
        if stage or self.seconds_left:
            yield "time left", left
        share = f" ({self.flops / self.all_flops:.0%})" if self.all_flops else ""
        yield "compute", f"{scientific(self.flops)} of the {self.kind}'s {scientific(self.all_flops)} FLOPs{share}"
        if stage and self.schedule and stage.step < stage.num_steps:
            every = self.schedule.evaluation.every
            step = min((stage.step // every + 1) * every, stage.num_steps)
            yield "evaluation", f"next {_ahead(stage, step - stage.step)}, at step {step}"
        if stage and (growth := self.steps_to_growth(stage)):
            plan, num_steps = growth
            latest = " at the latest" if self.schedule and self.schedule.growth.when == "slope" else ""
            yield "growth", f"next {_ahead(stage, num_steps)}{latest}, to {short_count(plan.num_parameters)} parameters"

    def line(self, stage: StageProgress) -> str:
        """The same facts in one line, for a log, while `stage` trains."""
        facts = (
            text if label in ("loss", "speed", "compute") else f"{label} {text}" for label, text in self.facts(stage)
        )
        return f"stage {stage.plan.name} step {stage.step}/{stage.num_steps}: {', '.join(facts)}"

    def _around(self, stage: StageProgress) -> tuple[list[StageProgress], list[StageProgress]]:
        """The stages before and after `stage`."""
        parts = list(self.stages.values())
        index = parts.index(stage)
        return parts[:index], parts[index + 1 :]

    def _losses(self, stage: StageProgress) -> str:
        """The losses of a stage; while it has none, those of the last stage before it that has any."""
        before, _ = self._around(stage)
        for part in (stage, *reversed(before)):
            if part.loss is not None or part.validation_step is not None:
                return part.losses if part is stage else f"{part.plan.name} ended with {part.losses}"
        return stage.losses

    def _speed(self, stage: StageProgress) -> str:
        if not stage.tokens_per_second:
            return "not measured yet"
        mfu = stage.mfu(self.schedule.launch.hardware) if self.schedule else None
        share = "MFU n/a (the device's peak is unknown)" if mfu is None else f"MFU {mfu:.1%} of the devices' peak"
        is_waiting = stage.data_wait_share >= SHOWN_WAIT
        waits = f", {stage.data_wait_share:.0%} of the time waits for data" if is_waiting else ""
        return f"{short_count(stage.tokens_per_second)} tokens/s, {share}{waits}"


def _ahead(stage: StageProgress, num_steps: int) -> str:
    if not num_steps:
        return "now"
    seconds = stage.seconds_of(num_steps)
    return f"in {counted(num_steps, 'step')}" + ("" if seconds is None else f" ({duration(seconds)})")
