"""Formats the report for the terminal: a table for each run, then what growing saved."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from growctl.ledger.ledger import Anomaly
from growctl.report.compare import compare
from growctl.report.family import compare_family, price
from growctl.report.read import RunReport, StageReport
from growctl.report.samples import print_samples
from growctl.report.scores import print_scores
from growctl.report.validation import validation_warnings
from growctl.report.verdict import verdict
from growctl.text.formatting import duration, scientific, short_count
from stages.counted import counted

if TYPE_CHECKING:
    from rich.console import Console

COLUMNS = ("stage", "parameters", "tokens", "FLOPs", "FLOPs so far", "device time", "perplexity", "jump")
"""The columns that `stage_cells` fills. The jump is in nats per token; the other cells carry their units."""

DROPPED = ("FLOPs", "device time", "parameters")
"""The columns to drop from a narrow terminal, first to last."""

MOST_NAME, LEAST_NAME = 24, 12
"""The widest column of names, and the narrowest before columns are dropped; longer names break at hyphens."""

SHOWN_ANOMALIES = 10
WENT_WRONG = "training anomalies"


def stage_cells(stage: StageReport) -> tuple[str, ...]:
    """The cells of a stage, one for each of COLUMNS."""
    jump = "-" if stage.jump is None else f"{stage.jump:+.1e}" if stage.jump else "0"
    perplexity = "-" if stage.perplexity is None else f"{stage.perplexity:.4g}"
    if not stage.finished and stage.train_tokens:
        perplexity = "unfinished"
    return (
        *(stage.name, short_count(stage.num_parameters), short_count(stage.train_tokens)),
        *(scientific(stage.flops), scientific(stage.cumulative_flops), duration(stage.device_seconds)),
        *(perplexity, jump),
    )


def describe(run: RunReport) -> str:
    """What kind of run it is, to print beside its name."""
    return f"{run.control}, control of {run.control_of}" if run.control else f"ladder, {run.schedule}"


def replayed_work(run: RunReport) -> str | None:
    """The cost of replayed work, in one sentence; None if there is none."""
    flops = sum(part.replayed_flops for part in run.parts)
    seconds = round(sum(part.replayed_device_seconds for part in run.parts))
    share = f" (+{flops / run.total_flops:.1%})" if run.total_flops else ""
    parts = [f"{scientific(flops)} FLOPs{share}, not counted above"] if flops else []
    parts += [f"{duration(seconds)} of device time, counted above"] if seconds else []
    return f"Replayed after interruptions: {', and '.join(parts)}." if parts else None


def reused_work(run: RunReport) -> str | None:
    """The work taken over from other runs, in one sentence; None if there is none."""
    if not run.reused_from:
        return None
    flops, whole = run.reused_flops, run.total_flops
    return (
        f"Reused from {' and '.join(run.reused_from)}: {scientific(flops)} FLOPs ({flops / whole:.1%}), counted above "
        "as part of the model's cost; this run did not spend them, nor their device time."
    )


def base_cost(run: RunReport) -> str | None:
    """The checkpoint that a run started from and its cost, in one sentence; None for a new model."""
    if run.base is None:
        return None
    whose = f"trained in run {run.base.run}" if run.base.run else run.base.path
    size = f"{short_count(run.base.num_parameters)} parameters, {whose}"
    if run.base.flops is None:
        return f"Start checkpoint: {size}. Its cost is not known and not counted; start.flops can give it."
    return f"Start checkpoint: {scientific(run.base.flops)} FLOPs, counted in FLOPs so far ({size})."


def remarks(run: RunReport) -> list[str]:
    """The notes below a run's stages: its start checkpoint, reused and replayed work, releases, copies left out."""
    notes = (base_cost(run), reused_work(run), replayed_work(run), _releases(run))
    return [*filter(None, notes), *run.notes]


def _releases(run: RunReport) -> str | None:
    """How releases count, in one sentence; None if there are none."""
    if not run.releases:
        return None
    flops = scientific(run.total_flops - run.cumulative_flops)
    return f"Releases are branches of {flops} FLOPs in all; the stages after them do not count these."


def anomalies(run: RunReport) -> list[str]:
    """A sentence for each of the last anomalies of a run."""
    lines = [_anomaly(stage, anomaly) for stage, anomaly in run.anomalies[-SHOWN_ANOMALIES:]]
    left_out = len(run.anomalies) - len(lines)
    return [f"{left_out} earlier anomalies are in the JSON report.", *lines] if left_out else lines


def _anomaly(stage: str, anomaly: Anomaly) -> str:
    what = {"non_finite": "a non-finite value", "spike": "a spike"}.get(anomaly.kind, anomaly.kind)
    done = {"skip": "skipped", "rollback": "rolled back", "stop": "stopped"}.get(anomaly.action, anomaly.action)
    held = (
        f", {anomaly.value:.4g} against {anomaly.threshold:.4g}"
        if None not in (anomaly.value, anomaly.threshold)
        else ""
    )
    left_out = ""
    if anomaly.first_step is not None and anomaly.num_steps:
        left_out = f", skipping the data of {counted(anomaly.num_steps, 'step')} from step {anomaly.first_step} on"
    return f"{stage}, attempt {anomaly.attempt}, step {anomaly.step}: {what}{held}; {done}{left_out}."


def verdicts(runs: Sequence[RunReport]) -> list[tuple[str, tuple[str, ...]]]:
    """A heading and sentences for each comparison of a ladder, and of its finished models, with controls."""
    said: list[tuple[str, tuple[str, ...]]] = []
    for ladder in (run for run in runs if run.control is None):
        comparisons, family = compare(ladder, runs), compare_family(ladder, runs)
        for comparison in comparisons:
            size = comparison.num_parameters
            what = f"{comparison.control}, {short_count(size)} parameters" if size else "the best size from scratch"
            said.append((f"{ladder.name} against {what}", verdict(comparison)))
        if not comparisons and not (family and any(model.points or model.excluded for model in family.models)):
            said.append((ladder.name, ("It has no controls, so the saving from growing is unknown.",)))
        if family:
            for model in family.models:
                said.append((f"{model.ladder.name} against its size from scratch", verdict(model)))
            said.append((f"{ladder.name}: the price of a finished model of {len(family.models)} sizes", price(family)))
    return said


def _layout(widths: Sequence[int], room: int) -> tuple[list[int], int, int]:
    """The numbers of the columns to print after the name, the gap between columns, and the width of the names."""
    shown = list(range(1, len(COLUMNS)))
    wanted = min(widths[0], MOST_NAME)
    for gap, dropped in ((2, None), (1, None), *((1, name) for name in DROPPED)):
        shown = [index for index in shown if COLUMNS[index] != dropped]
        left = room - gap - sum(widths[index] + gap for index in shown)
        if left >= (wanted if gap == 2 else min(wanted, LEAST_NAME)):
            break
    return shown, gap, max(1, min(wanted, left))


def print_report(runs: Sequence[RunReport], console: "Console") -> None:
    """Prints every stage of every run and then the verdicts. A narrow terminal gets fewer columns."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    from growctl.text.colours import FAINT, WARNING
    from growctl.text.first_use import FirstUse
    from growctl.text.name_cell import NameCell

    cells = {run.name: [stage_cells(part) for part in run.parts] for run in runs}
    headers = [name.replace(" ", "\n", 1) for name in COLUMNS]
    rows = [row for some in cells.values() for row in some]
    widths = [
        max(len(word) for word in (*header.split("\n"), *column))
        for header, *column in zip(headers, *rows, strict=True)
    ]

    shown, gap, name_width = _layout(widths, console.width - 2)

    def print_rows(rows: Sequence[tuple[str, ...]], show_header: bool = False) -> None:
        table = Table(box=None, show_header=show_header, padding=(0, gap, 0, 0), header_style="bold")
        table.add_column(headers[0], width=name_width, vertical="bottom")
        for index in shown:
            table.add_column(headers[index], width=widths[index], justify="right", no_wrap=True, vertical="bottom")
        for row in rows:
            table.add_row(NameCell(row[0]), *(Text(row[index]) for index in shown))
        console.print(Padding(table, (0, 0, 0, 2)))

    print_rows([], show_header=True)
    for run in runs:
        console.print(Text.assemble((run.name, "bold"), "  ", (describe(run), FAINT)))
        print_rows(cells[run.name])
        for note in remarks(run):
            console.print(Padding(Text(note, FAINT), (0, 0, 0, 2)))
    words = FirstUse()
    for warning in validation_warnings(runs):
        console.print()
        console.print(Text("warning: ", f"bold {WARNING}") + Text(words.explained(warning), ""))
    wrong = [(f"{run.name}: {WENT_WRONG}", tuple(anomalies(run))) for run in runs if run.anomalies]
    for heading, sentences in [*wrong, *verdicts(runs)]:
        console.print()
        console.print(Text(heading, "bold"))
        for sentence in sentences:
            console.print(Padding(Text(words.explained(sentence)), (0, 0, 0, 2)))
    print_scores(runs, console)
    print_samples(runs, console)
