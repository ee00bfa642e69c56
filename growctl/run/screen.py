"""Shows the progress of a run: a live view on a terminal, plain lines elsewhere."""

import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from growctl.ladder.stage_plans import StagePlan, total_flops
from growctl.text.formatting import duration, indented, scientific, short_count
from stages.checkpoint.manifest import Manifest
from stages.generate.text_samples import TextSamples
from stages.metrics import Record

PLAIN_SECONDS = 10.0
"""A plain screen prints a line of training progress at most this often."""


class StageProgress:
    """The progress of one stage, gathered from its records."""

    def __init__(self, plan: StagePlan) -> None:
        self.plan = plan
        self.state = "waiting"
        self.step = 0
        self.loss: float | None = None
        self.validation_loss: float | None = None
        self.loss_after_growth: float | None = None
        self.tokens_per_second: float | None = None

    def update(self, record: Record) -> None:
        """Updates the progress with one record of metrics.jsonl."""
        self.step = int(record["step"])
        if record["event"] == "train":
            self.loss = self.loss if record["loss"] is None else record["loss"]  # null: no update was made
            self.tokens_per_second = record["tokens_per_second"]
        elif record["event"] == "evaluation":
            if record["point"] == "after_growth":
                self.loss_after_growth = record["loss"]
            self.validation_loss = record["loss"]

    @property
    def seconds_left(self) -> float | None:
        """Seconds that the stage still needs, estimated from the last measured speed; None before the first."""
        if not self.tokens_per_second:
            return None
        return (self.plan.num_steps - self.step) * self.plan.tokens_per_step / self.tokens_per_second


class Screen:
    """Prints plain lines. `LiveScreen` is the live view for a terminal."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.name = ""
        self.stages: dict[str, StageProgress] = {}
        self._last_line = 0.0
        self._last_phase = ""

    def run_started(self, name: str, control: str | None, plans: list[StagePlan]) -> None:
        """A run starts or resumes. `plans`: its stages, each followed by its release."""
        self.name = name
        self.stages = {plan.name: StageProgress(plan) for plan in plans}
        sizes = " -> ".join(short_count(plan.num_parameters) for plan in plans if not plan.branch_of)
        tokens, flops = sum(plan.train_tokens for plan in plans), total_flops(plans).total
        what = f"control ({control})" if control else "ladder"
        self.message(f"{name}: {what} {sizes}, {short_count(tokens)} tokens, {scientific(flops)} FLOPs")

    def run_finished(self) -> None:
        """Every stage is done."""
        self.message(f"{self.name}: done")

    def message(self, text: str) -> None:
        """Prints one line for the user."""
        self.console.print(Text(text), soft_wrap=True)

    def preparing(self, phase: str, fraction: float | None) -> None:
        """The dataset is being prepared."""
        if phase != self._last_phase:
            self._last_phase = phase
            self.message(f"data: {phase}")

    def copying(self, stage: str, done: int, total: int) -> None:
        """Files of a checkpoint are being linked or copied."""
        now = time.monotonic()
        if done == 1:
            self._last_line = now
        elif now - self._last_line >= PLAIN_SECONDS:
            self._last_line = now
            self.message(f"stage {stage}: {done} of {total} files copied")

    def growing(self, plan: StagePlan) -> None:
        """A checkpoint is being expanded."""
        self.message(f"growing to {plan.name}: {added_words(plan.attention_tokens, plan.ffn_tokens)}")

    def grown(self, plan: StagePlan, manifest: Manifest) -> None:
        """The expanded checkpoint is complete."""
        details = manifest.lineage.details
        before, after = details["num_parameters_before"], details["num_parameters"]
        self.message(f"grown: {short_count(before)} -> {short_count(after)} parameters")

    def catch_up(self, plan: StagePlan, records: Sequence[Record]) -> None:
        """Takes in records that the workers wrote earlier; prints nothing."""
        for record in records:
            self.stages[plan.name].update(record)

    def stage_started(self, plan: StagePlan) -> None:
        """The workers of a stage were started."""
        self.stages[plan.name].state = "starting"
        self.message(
            f"stage {plan.name}: {short_count(plan.num_parameters)} parameters, {plan.num_steps} steps, "
            f"{short_count(plan.train_tokens)} tokens"
        )

    def record(self, plan: StagePlan, record: Record) -> None:
        """A worker wrote a record."""
        stage = self.stages[plan.name]
        stage.state = "training"
        stage.update(record)
        if record["event"] == "start":
            self.message(
                f"stage {plan.name}: {record['num_devices']} x {record['device']}, {record['precision']}, "
                f"ZeRO-{record['zero_stage']}"
            )
        elif record["event"] == "train" and time.monotonic() - self._last_line >= PLAIN_SECONDS:
            self._last_line = time.monotonic()
            self.progress(stage)
        elif record["event"] == "evaluation":
            point = {"after_growth": "right after growth", "start": "at its start", "final": "final, float32"}.get(
                record["point"], ""
            )
            said = evaluation_words(record) + (f" ({point})" if point else "")
            self.message(f"stage {plan.name} step {record['step']}: {said}")
        elif record["event"] == "anomaly":
            self.message(f"stage {plan.name} step {record['step']}: {anomaly_words(record)}")
        elif record["event"] == "trigger" and record["fired"] and record["slope"] is not None:
            self.message(
                f"stage {plan.name} ends at step {record['step']}: its loss falls by {record['slope']:.2e} nats per "
                f"FLOP, less than {record['threshold']:.2e}"
            )

    def progress(self, stage: StageProgress) -> None:
        """Prints a line of training progress."""
        left = stage.seconds_left
        loss = "no loss yet" if stage.loss is None else f"loss {stage.loss:.4f}"
        self.message(
            f"stage {stage.plan.name} step {stage.step}/{stage.plan.num_steps}: {loss}, "
            f"{short_count(stage.tokens_per_second or 0)} tokens/s"
            + (f", {duration(left)} left in the stage" if left is not None else "")
        )

    def stage_finished(self, plan: StagePlan) -> None:
        """A stage's `final/` is complete, from now or from an earlier execution."""
        self.stages[plan.name].state = "done"

    def sampled(self, plan: StagePlan, written: TextSamples) -> None:
        """The model of a finished stage wrote texts."""
        for sample in written.samples:
            self.message(f"stage {plan.name} writes:\n{indented(sample.whole)}")

    def __enter__(self) -> "Screen":
        return self

    def __exit__(self, *_: Any) -> None:
        return None


class LiveScreen(Screen):
    """A table of the ladder that is redrawn in place, with messages scrolling above it."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._phase = ""
        self._live = Live(get_renderable=self._render, console=console, refresh_per_second=4, transient=False)

    def __enter__(self) -> "LiveScreen":
        self._live.start(refresh=True)
        return self

    def __exit__(self, *_: Any) -> None:
        self._live.stop()

    def preparing(self, phase: str, fraction: float | None) -> None:
        """The dataset is being prepared."""
        self._phase = f"data: {phase}" + (f" {fraction:.0%}" if fraction is not None else "")

    def run_finished(self) -> None:
        """Every stage is done: prints the final table and clears the live view for the next run."""
        self.console.print(self._render())
        self.stages = {}

    def stage_started(self, plan: StagePlan) -> None:
        """The workers of a stage were started."""
        self._phase = ""
        self.stages[plan.name].state = "starting"

    def progress(self, stage: StageProgress) -> None:
        """Prints nothing: the table shows the progress."""

    def _render(self) -> Group:
        if not self.stages:
            return Group()
        table = Table(title=self.name, title_justify="left", expand=False, pad_edge=False, box=None)
        for heading in (
            "stage",
            "parameters",
            "progress",
            "steps",
            "loss",
            "validation",
            "tokens/s",
            "left",
            "FLOPs",
        ):
            right = heading not in ("stage", "progress")
            table.add_column(heading, justify="right" if right else "left", no_wrap=True)
        spent = 0.0
        for stage in self.stages.values():
            plan, done = stage.plan, stage.step
            flops = spent + plan.step_flops.total * done
            spent = spent if plan.branch_of else flops
            active = stage.state in ("starting", "training")
            left = stage.seconds_left if stage.state == "training" else None
            table.add_row(
                plan.name,
                short_count(plan.num_parameters),
                ProgressBar(total=plan.num_steps, completed=done, width=16, pulse=stage.state == "starting"),
                f"{done}/{plan.num_steps}",
                f"{stage.loss:.4f}" if stage.loss is not None else "",
                f"{stage.validation_loss:.4f}" if stage.validation_loss is not None else "",
                short_count(stage.tokens_per_second) if active and stage.tokens_per_second else "",
                duration(left) if left is not None else stage.state,
                scientific(flops) if done else "",
                style="bold" if active else "",
            )
        return Group(table, Text(self._phase, style="dim")) if self._phase else Group(table)


def evaluation_words(record: Record) -> str:
    """The figures of an evaluation. Those that are null were not finite."""
    if record["loss"] is None:
        return "the validation loss is not finite"
    perplexity = "infinite" if record["perplexity"] is None else f"{record['perplexity']:.3f}"
    return f"validation loss {record['loss']:.5f}, perplexity {perplexity}, {record['bits_per_byte']:.4f} bits/byte"


def anomaly_words(record: Record) -> str:
    """Why an update was rejected, and what happens next."""
    if record["kind"] == "spike":
        wrong = f"a loss of {record['value']:.4f} is a spike (above {record['threshold']:.4f})"
    else:
        wrong = "the gradient is not finite"
    follows = {
        "skip": "the update is skipped",
        "rollback": f"rolling back to step {record['first_step']} and skipping the data of {record['num_steps']} steps",
        "stop": "the stage stops",
    }
    return f"{wrong}: {follows[record['action']]}"


def added_words(attention_tokens: Sequence[int], ffn_tokens: Sequence[int]) -> str:
    """Describes what a growth adds, from the tokens added to each layer."""
    if not attention_tokens:
        return "a transformer's width and depth"
    sizes = set(zip(attention_tokens, ffn_tokens, strict=True)) - {(0, 0)}
    num_layers = sum(1 for size in zip(attention_tokens, ffn_tokens, strict=True) if size in sizes)
    where = "of every layer" if num_layers == len(attention_tokens) else f"of {num_layers} layers"
    attention, ffn = ({min(added), max(added)} for added in zip(*sizes, strict=True))
    most, most_ffn = (" to ".join(f"+{tokens}" for tokens in sorted(ends)) for ends in (attention, ffn))
    return f"{most} tokens in Q, K, V and O, {most_ffn} in the FFN, {where}"


def make_screen(console: Console) -> Screen:
    """A live view if `console` is a terminal, else a screen of plain lines."""
    return LiveScreen(console) if console.is_terminal else Screen(console)
