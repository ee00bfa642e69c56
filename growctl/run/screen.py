"""Shows the progress of a run: a live view on a terminal, plain lines elsewhere."""

import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from growctl.ladder.sizes import Growth
from growctl.ladder.stage_plans import StagePlan, total_flops
from growctl.run.progress import LadderProgress, StageProgress
from growctl.schedule.blocks import Schedule
from growctl.text.colours import BUSY, FAINT, GOOD
from growctl.text.console import Verbatim
from growctl.text.formatting import byte_count, duration, indented, scientific, short_count, wrapped
from growctl.text.name_cell import NameCell, broken
from stages.checkpoint.manifest import Manifest
from stages.corpus.tasks import Work
from stages.counted import counted
from stages.generate.text_samples import TextSamples
from stages.metrics import Record

PLAIN_SECONDS = 10.0
"""A plain screen prints a line of training progress at most this often, in its first minutes."""

LATER_SECONDS = 60.0
"""The same, once it is FIRST_SECONDS old: a run of a week should not fill its log."""

FIRST_SECONDS = 600.0

WRITES = "writes:"
"""Ends the line above a text that a stage's model wrote. Each line of the text is indented, or empty."""

HEADINGS = (
    *("stage", "size", "progress", "steps", "training\nloss", "validation\nloss", "tokens/s", "FLOPs\nso far", "left"),
)
"""The columns of the stages. The second line of a heading is below the first."""

WIDE = 116
"""Characters of a terminal that shows all columns."""

LEAST_ROOM = dict.fromkeys(("size", "tokens/s", "FLOPs\nso far"), WIDE) | dict.fromkeys(
    ("progress", "training\nloss"), 76
)
"""Characters from which on a terminal shows a column, if it is not shown always."""

MOST_NAME = 24
"""Longer names break at hyphens."""

MESSAGE_LINES = 3
"""Lines of the terminal that stay free for messages above the view."""


class Screen:
    """Prints plain lines. `LiveScreen` is the live view for a terminal."""

    def __init__(self, console: Console, *, timestamps: bool = False) -> None:
        """`timestamps`: every line begins with the time, in UTC, such as `2026-01-31T09:30:00Z`."""
        self.console = console
        self.ladder = LadderProgress("", None, [], None)
        self._timestamps = timestamps
        self._first = time.monotonic()
        self._last_line = 0.0
        self._last_phase = ""

    @property
    def stages(self) -> dict[str, StageProgress]:
        """The stages of the run, by name."""
        return self.ladder.stages

    def run_started(
        self, name: str, control: str | None, plans: list[StagePlan], schedule: Schedule | None = None
    ) -> None:
        """A run starts or resumes. `plans`: its stages, each followed by its release. Without `schedule`, the screen
        knows neither the evaluations nor the hardware."""
        self.ladder = LadderProgress(name, control, plans, schedule)
        sizes = " -> ".join(short_count(plan.num_parameters) for plan in plans if not plan.branch_of)
        tokens, flops = sum(plan.budget_tokens for plan in plans), total_flops(plans).total
        what = f"control ({control})" if control else "ladder"
        self.message(f"{name}: {what} {sizes}, {short_count(tokens)} tokens, {scientific(flops)} FLOPs")

    def planned_again(self, plans: Sequence[StagePlan]) -> None:
        """A stage is done. `plans`: all stages and releases; later ones may have other steps if it ended early."""
        self.ladder.plan_again(plans)

    def run_finished(self) -> None:
        """Every stage is done."""
        self.message(f"{self.ladder.name}: done")

    def message(self, text: str) -> None:
        """Prints a message for the user, usually of one line. A terminal may show it in more lines."""
        self.verbatim(text)

    def verbatim(self, text: str) -> None:
        """Prints a message that holds an error or a command to copy: without line feeds of its own."""
        if self._timestamps:
            now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
            text = "\n".join(f"{now} {part}" if part else now for part in text.split("\n"))
        self._print(text)

    def _print(self, text: str) -> None:
        self.console.print(Verbatim(text), soft_wrap=True)

    def preparing(self, phase: str, fraction: float | None) -> None:
        """The dataset is being prepared."""
        if phase != self._last_phase:
            self._last_phase = phase
            self.message(f"data: {phase}")

    def preparing_work(self, work: Work) -> None:
        """The dataset is being prepared: figures about it, once a second."""
        if self._is_line_due():
            self._last_line = time.monotonic()
            self.message(f"data: {work_words(work)}")

    def copying(self, stage: str, done: int, total: int) -> None:
        """Files of a checkpoint are being linked or copied."""
        now = time.monotonic()
        if done == 1:
            self._last_line = now
        elif now - self._last_line >= PLAIN_SECONDS:
            self._last_line = now
            self.message(f"stage {stage}: {done} of {counted(total, 'file')} copied")

    def growing(self, plan: StagePlan) -> None:
        """A checkpoint is being expanded."""
        self.message(f"growing to {plan.name}: {added_words(plan.growth)}")

    def grown(self, plan: StagePlan, manifest: Manifest) -> None:
        """The expanded checkpoint is complete."""
        before, after = (entry.num_parameters for entry in manifest.lineage.history[-2:])
        self.message(f"grown: {short_count(before)} -> {short_count(after)} parameters")

    def catch_up(self, plan: StagePlan, records: Sequence[Record]) -> None:
        """Takes in records that the workers wrote earlier; prints nothing."""
        for record in records:
            self.stages[plan.name].update(record)

    def stage_started(self, plan: StagePlan) -> None:
        """The workers of a stage were started."""
        self.stages[plan.name].state = "starting"
        batch, layers = plan.batch, counted(plan.model.num_layers, "layer")
        self.message(
            f"stage {plan.name}: {short_count(plan.num_parameters)} parameters in {layers}, "
            f"{counted(plan.num_steps, 'step')} of {batch.batch_size:,} x {batch.sequence_length:,} tokens, "
            f"{short_count(plan.budget_tokens)} in all"
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
        elif record["event"] == "train" and self._is_line_due():
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
                f"stage {plan.name} ends at step {record['step']}: its loss falls by {record['slope']:.2e} nats (units "
                f"of the natural logarithm) per FLOP, less than {record['threshold']:.2e}"
            )

    def progress(self, stage: StageProgress) -> None:
        """Prints a line of training progress."""
        self.message(self.ladder.line(stage))

    def _is_line_due(self) -> bool:
        now = time.monotonic()
        return now - self._last_line >= (PLAIN_SECONDS if now - self._first < FIRST_SECONDS else LATER_SECONDS)

    def stage_finished(self, plan: StagePlan) -> None:
        """A stage's `final/` is complete, from now or from an earlier execution."""
        self.stages[plan.name].state = "done"

    def sampled(self, plan: StagePlan, written: TextSamples) -> None:
        """The model of a finished stage wrote texts. Prints them as they are, but indented."""
        for sample in written.samples:
            self.verbatim(f"stage {plan.name} {WRITES}")
            self._print(indented(sample.whole))

    def __enter__(self) -> "Screen":
        return self

    def __exit__(self, *_: Any) -> None:
        return None


class LiveScreen(Screen):
    """A view of the ladder that is redrawn in place, with messages scrolling above it."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._phase = ""
        self._live = Live(get_renderable=self._render, console=console, refresh_per_second=4, vertical_overflow="crop")

    def __enter__(self) -> "LiveScreen":
        self._live.start(refresh=True)
        return self

    def __exit__(self, *_: Any) -> None:
        self._phase = ""
        self._live.stop()

    def message(self, text: str) -> None:
        """Prints a message for the user. Breaks lines between words; a longer word, such as a path, stays whole."""
        self.verbatim(wrapped(text, self.console.width))

    def preparing(self, phase: str, fraction: float | None) -> None:
        """The dataset is being prepared."""
        if not self._phase.startswith(f"data: {phase}: "):  # figures say more
            self._phase = f"data: {phase}" + (f" {fraction:.0%}" if fraction is not None else "")

    def preparing_work(self, work: Work) -> None:
        """The dataset is being prepared: figures about it, once a second."""
        self._phase = f"data: {work_words(work)}"

    def run_finished(self) -> None:
        """Every stage is done: prints the final table and clears the live view for the next run."""
        self.console.print(View(self.ladder, whole=True))
        self.ladder = LadderProgress("", None, [], None)

    def stage_started(self, plan: StagePlan) -> None:
        """The workers of a stage were started."""
        self._phase = ""
        self.stages[plan.name].state = "starting"

    def progress(self, stage: StageProgress) -> None:
        """Prints nothing: the view shows the progress."""

    def _render(self) -> Group:
        if self.stages:
            return Group(View(self.ladder, self._phase))
        return Group(Text(self._phase, overflow="ellipsis", no_wrap=True)) if self._phase else Group()


class View:
    """The view of a run, laid out for the width and height of the terminal that shows it."""

    def __init__(self, ladder: LadderProgress, phase: str = "", *, whole: bool = False) -> None:
        """`phase`: what happens beside training. `whole`: show all stages, on a terminal that scrolls."""
        self._ladder, self._phase, self._whole = ladder, phase, whole

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        facts = Table.grid(padding=(0, 2, 0, 0))
        for label, text in self._ladder.facts(self._ladder.active):
            facts.add_row(Text(label, "bold"), Text(text))
        around = len(console.render_lines(facts, options)) + 2 + bool(self._phase)  # a title and an empty line
        num_lines = None if self._whole else options.max_height - around - MESSAGE_LINES
        yield Text(self._ladder.name, "bold", overflow="fold")
        yield stage_table(self._ladder, options.max_width, num_lines)
        yield Text()
        yield facts
        if self._phase:
            yield Text(self._phase)


def stage_table(ladder: LadderProgress, room: int, num_lines: int | None = None) -> Table:
    """The stages of a run in `room` characters.

    With `num_lines`, the table takes about as many lines at most: then it shows the stages around the one that trains
    now, and counts the others.
    """
    stages = list(ladder.stages.values())
    headings = [heading for heading in HEADINGS if room >= LEAST_ROOM.get(heading, 0)]
    fitting = len(stages)
    if num_lines is not None:
        tallest = max(len(broken(stage.plan.name, MOST_NAME)) for stage in stages)
        if (num_lines - 2) // tallest < fitting:
            fitting = max(1, (num_lines - 4) // tallest)  # two lines of headings, two that count the others
    present = next((index for index, stage in enumerate(stages) if stage.state != "done"), len(stages) - 1)
    first = max(0, min(present - fitting // 2, len(stages) - fitting))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in headings:
        left = heading in ("stage", "progress")
        table.add_column(heading, justify="left" if left else "right", no_wrap=not left, vertical="bottom")
    if first:
        table.add_row(Text(f"{first} earlier", FAINT))
    bar_width = max(8, min(40, room - (WIDE - 8 if room >= WIDE else 76)))
    for stage in stages[first : first + fitting]:
        cells = _cells(ladder, stage)
        bar = ProgressBar(
            stage.num_steps, stage.step, width=bar_width, style=FAINT, complete_style=BUSY, finished_style=GOOD
        )
        shown: dict[str, RenderableType] = {"stage": NameCell(stage.plan.name), "progress": bar}
        table.add_row(
            *(shown.get(heading) or Text(cells[heading]) for heading in headings),
            style="bold" if stage.is_active else "",
        )
    if later := len(stages) - first - fitting:
        table.add_row(Text(f"{later} later", FAINT))
    return table


def _cells(ladder: LadderProgress, stage: StageProgress) -> dict[str, str]:
    """The texts of a stage's row, by heading."""
    left = stage.seconds_left if stage.state == "training" else None
    texts = (
        stage.plan.name,
        short_count(stage.plan.num_parameters),
        "",
        f"{stage.step}/{stage.num_steps}",
        "" if stage.loss is None else f"{stage.loss:.4f}",
        stage.validation_text,
        short_count(stage.tokens_per_second) if stage.tokens_per_second else "",
        scientific(ladder.flops_so_far(stage)) if stage.step else "",
        stage.state if left is None else duration(left),
    )
    return dict(zip(HEADINGS, texts, strict=True))


def work_words(work: Work) -> str:
    """How far the preparation of a dataset has come: `tokenising: 312 MB of 1.2 GB, 1.1M tokens/s, 12min left`."""
    words = [f"{byte_count(work.done_bytes)} of {byte_count(work.total_bytes)}"]
    if work.num_tokens:
        words.append(f"{short_count(work.num_tokens / work.seconds)} tokens/s")
    if work.seconds_left is not None:
        words.append(f"{duration(work.seconds_left)} left")
    return f"{work.description}: {', '.join(words)}"


def evaluation_words(record: Record) -> str:
    """The figures of an evaluation. Those that are null were not finite."""
    if record["loss"] is None:
        return "the validation loss is not finite"
    perplexity = "infinite" if record["perplexity"] is None else f"{record['perplexity']:.3f}"
    own = record.get("own_context_loss")
    at_own = "" if own is None else f" ({own:.5f} at its own context)"
    loss = f"{record['loss']:.5f}{at_own}"
    return f"validation loss {loss}, perplexity {perplexity}, {record['bits_per_byte']:.4f} bits/byte"


def anomaly_words(record: Record) -> str:
    """Why an update was rejected, and what happens next."""
    if record["kind"] == "spike":
        wrong = f"a loss of {record['value']:.4f} is a spike (above {record['threshold']:.4f})"
    else:
        wrong = "the gradient is not finite"
    follows = {
        "skip": "the update is skipped",
        "rollback": f"rolling back to step {record['first_step']} and skipping the data of "
        f"{counted(record['num_steps'], 'step')}"
        if record["action"] == "rollback"
        else "",
        "stop": "the stage stops",
    }
    return f"{wrong}: {follows[record['action']]}"


def added_words(growth: Growth) -> str:
    """Describes what a growth adds."""
    layers = counted(growth.new_layers, "new layer") if growth.new_layers else ""
    if growth.layer_tokens:
        attention, ffn = growth.layer_tokens
        layers += f" with {attention} tokens in Q, K, V and O, {ffn} in the FFN"
    tokens = _added_tokens(growth) if growth.adds_tokens else ""
    return "; ".join(filter(None, (layers, tokens))) or "a transformer's width and depth"


def _added_tokens(growth: Growth) -> str:
    """Describes the tokens that old layers gain."""
    by_layer = list(zip(growth.attention_tokens, growth.ffn_tokens, strict=True))
    sizes = set(by_layer) - {(0, 0)}
    num_layers = sum(1 for size in by_layer if size in sizes)
    old = "old " if growth.new_layers else ""
    where = f"of every {old}layer" if num_layers == len(by_layer) else f"of {counted(num_layers, f'{old}layer')}"
    attention, ffn = ({min(added), max(added)} for added in zip(*sizes, strict=True))
    most, most_ffn = (" to ".join(f"+{tokens}" for tokens in sorted(ends)) for ends in (attention, ffn))
    return f"{most} tokens in Q, K, V and O, {most_ffn} in the FFN, {where}"


def make_screen(console: Console) -> Screen:
    """A live view if `console` is a terminal, else a screen of plain lines with timestamps."""
    return LiveScreen(console) if console.is_terminal else Screen(console, timestamps=True)
