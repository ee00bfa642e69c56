"""How far a run has come, gathered from the records that workers write, and the facts of it in words."""

from collections.abc import Iterator, Sequence
from typing import Literal

from growctl.ladder.stage_plans import StagePlan
from growctl.schedule.blocks import Schedule
from growctl.schedule.launch_block import HardwareBlock, peak_flops
from growctl.text.formatting import duration, scientific, short_count
from stages.metrics import Record


class StageProgress:
    """The progress of one stage or release. Figures are None before the first record that holds them."""

    def __init__(self, plan: StagePlan) -> None:
        self.plan = plan
        self.state: Literal["waiting", "starting", "training", "done"] = "waiting"
        self.step = 0
        self.loss: float | None = None
        """Training loss, in nats per token."""
        self.validation = ""
        """The last validation loss, in words; empty before the first evaluation."""
        self.tokens_per_second: float | None = None
        self._start: Record = {}

    def update(self, record: Record) -> None:
        """Takes in one record of metrics.jsonl."""
        self.step = int(record["step"])
        if record["event"] == "start":
            self._start = record
        elif record["event"] == "train":
            self.loss = self.loss if record["loss"] is None else record["loss"]  # null: no update was made
            self.tokens_per_second = record["tokens_per_second"]
        elif record["event"] == "evaluation":
            self.validation = "not finite" if record["loss"] is None else f"{record['loss']:.4f}"

    @property
    def num_steps(self) -> int:
        """Its steps: the budget, or for a finished stage the steps that it took."""
        return self.step if self.state == "done" else self.plan.num_steps

    @property
    def flops_per_second(self) -> float | None:
        """Training FLOPs per second, over all devices, at the last measured speed."""
        speed = self.tokens_per_second
        return self.plan.step_flops.total / self.plan.tokens_per_step * speed if speed else None

    def mfu(self, hardware: HardwareBlock) -> float | None:
        """Model FLOPs utilisation: the share of the devices' peak that training reaches; None without a known peak."""
        if self.flops_per_second is None or not self._start:
            return None
        peak = peak_flops(hardware.flops, self._start["device"], self._start["precision"])
        return self.flops_per_second / (self._start["num_devices"] * peak) if peak else None


class LadderProgress:
    """The progress of a ladder, or of a control: both are stages, some followed by a release."""

    def __init__(self, name: str, plans: Sequence[StagePlan], schedule: Schedule | None) -> None:
        """`plans`: all stages, each followed by its release. `schedule`: None if the hardware is not known."""
        self.name = name
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
        return next((stage for stage in self.stages.values() if stage.state in ("starting", "training")), None)

    @property
    def flops(self) -> float:
        """Training FLOPs of all steps done, of releases too; not those of steps that were repeated."""
        return sum(stage.plan.step_flops.total * stage.step for stage in self.stages.values())

    @property
    def all_flops(self) -> float:
        """Training FLOPs of all steps, done and planned."""
        return sum(stage.plan.step_flops.total * stage.num_steps for stage in self.stages.values())

    @property
    def seconds_left(self) -> float | None:
        """Seconds that all stages still need, at the last measured FLOPs per second; None before the first."""
        speeds = [stage.flops_per_second for stage in self.stages.values() if stage.flops_per_second]
        return (self.all_flops - self.flops) / speeds[-1] if speeds else None

    def facts(self) -> Iterator[tuple[str, str]]:
        """The facts of the run as (label, text), and of the stage that trains now, if one does."""
        if stage := self.active:
            training = "not logged yet" if stage.loss is None else f"{stage.loss:.4f}"
            yield "loss", f"{training}, validation {stage.validation or 'not measured yet'}"
            yield "speed", self._speed(stage)
        if self.seconds_left:
            yield "time left", duration(self.seconds_left)
        yield "compute", f"{scientific(self.flops)} of {scientific(self.all_flops)} FLOPs"

    def line(self) -> str:
        """The same facts in one line, for a log, while a stage trains."""
        stage = self.active
        assert stage is not None
        facts = (text if label in ("speed", "compute") else f"{label} {text}" for label, text in self.facts())
        return f"stage {stage.plan.name} step {stage.step}/{stage.num_steps}: {', '.join(facts)}"

    def _speed(self, stage: StageProgress) -> str:
        if not stage.tokens_per_second:
            return "not measured yet"
        mfu = stage.mfu(self.schedule.launch.hardware) if self.schedule else None
        return f"{short_count(stage.tokens_per_second)} tokens/s, MFU {'n/a' if mfu is None else f'{mfu:.1%}'}"
