"""The progress of one stage, gathered from the records that its workers write."""

from typing import Literal

from growctl.ladder.stage_plans import StagePlan
from growctl.schedule.known_devices import peak_flops
from growctl.schedule.launch_block import HardwareBlock
from model.config import TokenformerConfig
from stages.metrics import Record
from stages.spec import progress_at

State = Literal["waiting", "starting", "training", "done"]


class StageProgress:
    """The progress of one stage or release. Figures are None before the first record that holds them."""

    def __init__(self, plan: StagePlan) -> None:
        self.plan = plan
        self.state: State = "waiting"
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
        if not self.tokens_per_second:
            return None
        return self.plan.step_flops.total / self.plan.tokens_per_step * self.tokens_per_second

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
