"""Shows the progress of a run: a live view on a terminal, plain lines elsewhere."""

import re
import textwrap
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import zip_longest
from typing import Any, Literal

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from growctl.ladder.sizes import Growth
from growctl.ladder.stage_plans import StagePlan, total_flops
from growctl.run.signals import leave_terminal
from growctl.schedule.blocks import Schedule
from growctl.schedule.launch_block import HardwareBlock, peak_flops
from growctl.text.console import BUSY, FAINT, GOOD, Verbatim
from growctl.text.formatting import byte_count, duration, scientific, short_count
from growctl.text.terminal import NameCell
from stages.corpus.tasks import Meter
from stages.counted import counted
from stages.generate.text_samples import TextSamples
from stages.metrics import Record

PLAIN_SECONDS = 30.0
"""A plain screen prints a line of training progress at most this often."""

WRITES = "writes:"
"""Ends the line above a text that a stage's model wrote. Each line of the text is indented, or empty."""

OTHER_COLUMNS = 70
"""Characters of a line that the view keeps for everything but the bar; names of stages above 24 may break."""


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
        return self.plan.step_flops.total / self.plan.batch.tokens * speed if speed else None

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


class Screen:
    """Prints plain lines. `LiveScreen` is the live view for a terminal."""

    def __init__(self, console: Console, *, timestamps: bool = False) -> None:
        """`timestamps`: every line begins with the time, in UTC, such as `2026-01-31T09:30:00Z`."""
        self.console = console
        self.ladder = LadderProgress("", [], None)
        self._timestamps = timestamps
        self._last_line = -PLAIN_SECONDS
        self._last_phase = ""

    def run_started(
        self, name: str, control: str | None, plans: list[StagePlan], schedule: Schedule | None = None
    ) -> None:
        """A run starts or resumes. `plans`: its stages, each followed by its release. Without `schedule`, the screen
        does not know the hardware."""
        self.ladder = LadderProgress(name, plans, schedule)
        sizes = " -> ".join(short_count(plan.num_parameters) for plan in plans if not plan.branch_of)
        tokens, flops = sum(plan.budget_tokens for plan in plans), total_flops(plans).total
        what = f"control ({control})" if control else "ladder"
        self.message(f"{name}: {what} {sizes}, {short_count(tokens)} tokens, {scientific(flops)} FLOPs")

    def run_finished(self) -> None:
        """Every stage is done."""
        self.message(f"{self.ladder.name}: done")

    def message(self, text: str) -> None:
        """Prints a message for the user, without line feeds of its own: it may hold a path or a command to copy."""
        if self._timestamps:
            now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
            text = "\n".join(f"{now} {part}" if part else now for part in text.split("\n"))
        self._print(text)

    def _print(self, text: str) -> None:
        try:
            self.console.print(Verbatim(text), soft_wrap=True)
        except OSError:  # the terminal has gone without a SIGHUP, as that of a disowned job does
            leave_terminal()

    def preparing(self, phase: str, fraction: float | None) -> None:
        """The dataset is being prepared."""
        if phase != self._last_phase:
            self._last_phase = phase
            self.message(f"data: {phase}")

    def preparing_work(self, work: Meter) -> None:
        """The dataset is being prepared: figures about it, once a second."""
        if self._is_line_due():
            self.message(f"data: {work_words(work)}")

    def growing(self, plan: StagePlan) -> None:
        """A checkpoint is being expanded."""
        size = short_count(plan.num_parameters)
        self.message(f"growing to {plan.name}, {size} parameters: {added_words(plan.growth)}")

    def catch_up(self, plan: StagePlan, records: Sequence[Record]) -> None:
        """Takes in records that the workers wrote earlier; prints nothing."""
        for record in records:
            self.ladder.stages[plan.name].update(record)

    def stage_started(self, plan: StagePlan) -> None:
        """The workers of a stage were started."""
        self.ladder.stages[plan.name].state = "starting"
        batch, layers = plan.batch, counted(plan.model.num_layers, "layer")
        self.message(
            f"stage {plan.name}: {short_count(plan.num_parameters)} parameters in {layers}, "
            f"{counted(plan.num_steps, 'step')} of {batch.batch_size:,} x {batch.sequence_length:,} tokens, "
            f"{short_count(plan.budget_tokens)} in all"
        )

    def record(self, plan: StagePlan, record: Record) -> None:
        """A worker wrote a record."""
        stage = self.ladder.stages[plan.name]
        stage.state = "training"
        stage.update(record)
        at_step = f"stage {plan.name} step {record['step']}"
        if record["event"] == "start":
            device = f"{record['num_devices']} x {record['device']}, {record['precision']}"
            self.message(f"stage {plan.name}: {device}, ZeRO-{record['zero_stage']}")
        elif record["event"] == "train" and self._is_line_due():
            self.progress()
        elif record["event"] == "evaluation":
            self.evaluated(f"{at_step}: {evaluation_words(record)}")
        elif record["event"] == "anomaly":
            self.message(f"{at_step}: {anomaly_words(record)}")
        elif record["event"] == "trigger" and record["fired"] and record["slope"] is not None:
            self.message(
                f"stage {plan.name} ends at step {record['step']}: its loss falls by {record['slope']:.2e} nats (units "
                f"of the natural logarithm) per FLOP, less than {record['threshold']:.2e}"
            )

    def evaluated(self, text: str) -> None:
        """Prints the figures of an evaluation."""
        self.message(text)

    def progress(self) -> None:
        """Prints a line of training progress."""
        self.message(self.ladder.line())

    def _is_line_due(self) -> bool:
        """Whether enough time has passed since the last line of progress; starts it anew if so."""
        now = time.monotonic()
        is_due = now - self._last_line >= PLAIN_SECONDS
        self._last_line = now if is_due else self._last_line
        return is_due

    def stage_finished(self, plan: StagePlan) -> None:
        """A stage's `final/` is complete, from now or from an earlier execution."""
        self.ladder.stages[plan.name].state = "done"

    def sampled(self, plan: StagePlan, written: TextSamples) -> None:
        """The model of a finished stage wrote texts. Prints them as they are, but indented."""
        for sample in written.samples:
            self.message(f"stage {plan.name} {WRITES}")
            self._print(textwrap.indent(sample.whole, " " * 4))

    def __enter__(self) -> "Screen":
        return self

    def __exit__(self, *_: Any) -> None:
        return None


class LiveScreen(Screen):
    """A view of the ladder that is redrawn in place, with messages scrolling above it."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._phase = ""
        self._live = Live(get_renderable=self._render, console=console, refresh_per_second=4)

    def __enter__(self) -> "LiveScreen":
        self._live.start(refresh=True)
        return self

    def __exit__(self, *_: Any) -> None:
        self._phase = ""
        self._live.stop()

    def preparing(self, phase: str, fraction: float | None) -> None:
        if not self._phase.startswith(f"data: {phase}: "):  # figures say more
            self._phase = f"data: {phase}" + (f" {fraction:.0%}" if fraction is not None else "")

    def preparing_work(self, work: Meter) -> None:
        self._phase = f"data: {work_words(work)}"

    def run_finished(self) -> None:
        """Every stage is done: prints the final table and clears the live view for the next run."""
        self.console.print(view(self.ladder, self.console.width))
        self.ladder = LadderProgress("", [], None)

    def stage_started(self, plan: StagePlan) -> None:
        self._phase = ""
        self.ladder.stages[plan.name].state = "starting"

    def evaluated(self, text: str) -> None:
        """Prints the figures of an evaluation; a line that is too long breaks after a comma or a colon."""
        whole = re.sub("(?<![,:]) ", "\xa0", text)
        lines = textwrap.wrap(whole, self.console.width, subsequent_indent="  ", break_on_hyphens=False)
        self.message("\n".join(lines).replace("\xa0", " "))

    def progress(self) -> None:
        """Prints nothing: the view shows the progress."""

    def _render(self) -> Group:
        phase = [Text(self._phase, overflow="ellipsis", no_wrap=True)] if self._phase else []
        return Group(*([view(self.ladder, self.console.width)] if self.ladder.stages else []), *phase)


def view(ladder: LadderProgress, width: int) -> Group:
    """The facts of the run and a table of its stages, in lines of `width`."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("stage")
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("progress")
    for heading in ("steps", "validation", "state"):
        table.add_column(heading, justify="right", no_wrap=True)
    bar = partial(ProgressBar, style=FAINT, complete_style=BUSY, finished_style=GOOD)
    for stage in ladder.stages.values():
        table.add_row(
            NameCell(stage.plan.name),
            short_count(stage.plan.num_parameters),
            bar(stage.num_steps, stage.step, width=max(8, min(40, width - OTHER_COLUMNS))),
            f"{stage.step}/{stage.num_steps}",
            stage.validation,
            stage.state,
            style="bold" if stage is ladder.active else "",
        )
    facts = Table.grid(padding=(0, 2, 0, 0))
    for label, text in ladder.facts():
        facts.add_row(Text(label, "bold"), Text(text))
    return Group(Text(ladder.name, "bold", overflow="fold"), facts, Text(), table)


def work_words(work: Meter) -> str:
    """How far the preparation of a dataset has come: `tokenising: 312 MB of 1.2 GB, 1.1M tokens/s, 12min left`."""
    words = [f"{byte_count(work.done_bytes)} of {byte_count(work.total_bytes)}"]
    if work.num_tokens:
        words.append(f"{short_count(work.num_tokens / work.seconds)} tokens/s")
    if work.seconds_left is not None:
        words.append(f"{duration(work.seconds_left)} left")
    return f"{work.description}: {', '.join(words)}"


POINTS = {"after_growth": " (right after growth)", "start": " (at its start)", "final": " (final, float32)"}


def evaluation_words(record: Record) -> str:
    """The figures of an evaluation. Those that are null were not finite."""
    point = POINTS.get(record["point"], "")
    if record["loss"] is None:
        return f"the validation loss is not finite{point}"
    own = record.get("own_context_loss")
    loss = f"{record['loss']:.5f}" + ("" if own is None else f" ({own:.5f} at its own context)")
    if "top1" in record:
        return f"validation loss {loss}, {record['top1']:.2%} right, {record['top5']:.2%} among five{point}"
    perplexity = "infinite" if record["perplexity"] is None else f"{record['perplexity']:.3f}"
    return f"validation loss {loss}, perplexity {perplexity}, {record['bits_per_byte']:.4f} bits/byte{point}"


def anomaly_words(record: Record) -> str:
    """Why an update was rejected, and what happens next."""
    wrong = "the gradient is not finite"
    if record["kind"] == "spike":
        wrong = f"a loss of {record['value']:.4f} is a spike (above {record['threshold']:.4f})"
    if record["action"] == "rollback":
        skipped = counted(record["num_steps"], "step")
        return f"{wrong}: rolling back to step {record['first_step']} and skipping the data of {skipped}"
    return f"{wrong}: {'the update is skipped' if record['action'] == 'skip' else 'the stage stops'}"


def added_words(growth: Growth) -> str:
    """Describes what a growth adds; of layers that gain different numbers of tokens, the most."""
    words = []
    if growth.new_layers:
        words.append(counted(growth.new_layers, "new layer"))
        if growth.layer_tokens:
            words[0] += " with {} tokens in Q, K, V and O, {} in the FFN".format(*growth.layer_tokens)
    if growth.adds_tokens:
        sizes = set(zip_longest(growth.attention_tokens, growth.ffn_tokens, fillvalue=0))
        up_to = "up to " if len(sizes) > 1 else ""
        most, most_ffn = max(growth.attention_tokens, default=0), max(growth.ffn_tokens)
        attention = f"+{most} tokens in Q, K, V and O, " if most else ""
        words.append(f"{up_to}{attention}+{most_ffn} in the FFN of every old layer")
    if growth.heads:
        words.append(f"+{counted(growth.heads, 'head')} in every layer")
    if growth.widen > 1:
        words.append(f"{growth.widen} times the width")
    return "; ".join(words)


def make_screen(console: Console) -> Screen:
    """A live view if `console` is a terminal, else a screen of plain lines with timestamps."""
    return LiveScreen(console) if console.is_terminal else Screen(console, timestamps=True)
