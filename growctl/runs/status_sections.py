"""What `growctl status` says of runs: a line for each, or each in full, and how to resume them."""

from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from growctl.runs.directory import RunSet
from growctl.runs.stages import StageStatus
from growctl.runs.status import RunState, RunStatus, StatusDocument
from growctl.runs_dir import CONTROL_INFIX
from growctl.text.formatting import duration, short_count
from growctl.text.section import Cell, CellTone, Column, Listing, Paragraph, Part, Section, Table, rows_of
from stages.counted import plural

MANY_STEPS = 10_000

TONES: dict[RunState, CellTone] = {
    "running": "strong",
    "finished": "good",
    "failed": "bad",
    "stopped": "warning",
    "not started": "faint",
    "imported": "faint",
    "damaged": "bad",
    "unreadable": "bad",
}


def run_columns(runs: Sequence[Any], ladders: Collection[str]) -> tuple[Column, Column]:
    """The columns of the names and states of runs, which are records with `name`, `control_of` and `state`.

    Controls of `ladders` are indented, to stand below them.
    """
    below = [run.control_of in ladders for run in runs]

    def name(run: Any) -> Cell:
        _, infix, control = run.name.partition(CONTROL_INFIX)
        return Cell(f"  {control}" if run.control_of in ladders and infix else run.name)

    heading = "control" if all(below) else "run, its controls" if any(below) else "run"
    return (
        Column(heading, is_number=False, cell=name),
        Column("state", is_number=False, cell=lambda run: Cell(run.state, tone=TONES[run.state])),
    )


def runs_section(runs: Sequence[RunStatus], ladders: Collection[str]) -> Section:
    """One line for each run, with the controls of `ladders` below their ladder, and then the notes on all runs."""
    columns = (
        *run_columns(runs, ladders),
        Column("stage", is_number=False, cell=lambda run: Cell(_place(run))),
        Column("step", cell=lambda run: Cell(_steps(run.current, brief=True))),
        Column("training loss", cell=lambda run: _loss(run.current and run.current.training_loss)),
        Column("validation loss", cell=lambda run: _loss(run.current and run.current.validation_loss)),
        Column("left", cell=lambda run: Cell(_left(run.current) if run.state == "running" else "")),
    )
    remarks = [remark for run in runs for remark in _remarks(run, f"{run.name}: ")]
    return Section("runs", "", (Table.of("runs", columns, rows_of(columns, runs)), *remarks))


def status_sections(document: StatusDocument, *, details: bool) -> list[Section]:
    """One line for each run, or with `details` each ladder or lone control in full, and how to resume them."""
    runs, names = document.runs, {run.name for run in document.runs}
    sections = []
    for run in runs if details else ():
        if run.control_of not in names:
            sections.append(_run_section(run))
            if controls := [other for other in runs if other.control_of == run.name]:
                sections.append(runs_section(controls, [run.name]))
    if runs and not details:
        sections.append(runs_section(runs, names))
    last = [] if runs else [Paragraph(f"there are no runs in {document.runs_dir} yet")]
    last += [Paragraph(f"dataset {name} is being prepared") for name in document.preparing]
    return [*sections, Section("resume", "", (*_commands(runs), *last))]


def _run_section(run: RunStatus) -> Section:
    what = f"control ({run.control}) of {run.control_of}" if run.control else "ladder"
    run_set = f", of the set {RunSet(run.group, run.overrides)}" if run.group else ""
    columns = (
        Column("stage", is_number=False, cell=lambda stage: Cell(stage.name)),
        Column("state", is_number=False, cell=lambda stage: Cell(stage.state)),
        Column("steps", cell=lambda stage: Cell(_steps(stage))),
        Column("training loss", cell=lambda stage: _loss(stage.training_loss)),
        Column("validation loss", cell=lambda stage: _loss(stage.validation_loss)),
        Column("tokens/s", cell=lambda s: Cell(short_count(s.tokens_per_second) if s.tokens_per_second else "")),
        Column("left", cell=lambda stage: Cell(_left(stage))),
    )
    parts: list[Part] = [Paragraph(f"{what}{run_set}")]
    parts.append(Table.of("stages", columns, rows_of(columns, run.stages)))
    saved = [(stage, stage.checkpoint_at) for stage in run.stages if stage.checkpoint_at]
    parts += [Paragraph(f"{stage.name} was last saved {_ago(at)}: {stage.checkpoint}") for stage, at in saved[-1:]]
    return Section("run", f"{run.name}: {run.state}{_holder(run)}", (*parts, *_remarks(run, "")))


def _commands(runs: Sequence[RunStatus]) -> Iterator[Listing]:
    commands: dict[str, list[RunStatus]] = {}
    for run in runs:
        if run.resume_command:
            commands.setdefault(run.resume_command, []).append(run)
    for command, stopped in commands.items():
        others = f" and {len(stopped) - 1} more" if len(stopped) > 1 else ""
        jobs = ", once none of its jobs is queued or running" if any(run.jobs for run in stopped) else ""
        verb = "train" if all(run.state == "not started" for run in stopped) else "resume"
        yield Listing(f"to {verb} {stopped[0].name}{others}{jobs}:", command, is_command=True)


def _remarks(run: RunStatus, prefix: str) -> Iterator[Paragraph]:
    if run.reason:
        yield Paragraph(f"{prefix}failed: {run.reason}", "warning")
    if run.jobs and run.state != "finished":
        jobs = ", ".join(f"{number} ({name})" for name, number in run.jobs.items())
        asks = f"squeue --jobs={','.join(run.jobs.values())} shows where they stand"
        yield Paragraph(f"{prefix}SLURM {plural(len(run.jobs), 'job')} {jobs}; {asks}")
    for note in run.notes:
        yield Paragraph(prefix + note, "warning")


def _place(run: RunStatus) -> str:
    """The current stage and its position, such as `1-164k 2/3`."""
    if run.current is None:
        return ""
    place = f" {run.stages.index(run.current) + 1}/{len(run.stages)}" if len(run.stages) > 1 else ""
    return run.current.name + place


def _steps(stage: StageStatus | None, brief: bool = False) -> str:
    """Steps done and planned, such as `20/60`; `brief` shortens large numbers to three figures."""
    if stage is None:
        return ""
    count = short_count if brief and max(stage.step, stage.num_steps or 0) >= MANY_STEPS else str
    return f"{count(stage.step)}/{'?' if stage.num_steps is None else count(stage.num_steps)}"


def _loss(loss: float | None) -> Cell:
    return Cell("" if loss is None else f"{loss:.4f}", loss)


def _left(stage: StageStatus | None) -> str:
    if stage and stage.seconds_left is not None:
        return duration(stage.seconds_left)
    return stage.state if stage and stage.state in ("starting", "growing") else ""


def _holder(run: RunStatus) -> str:
    """The process that holds the run, and when its workers last wrote a record."""
    if run.since is None:
        return ""
    last = run.current and run.current.last_record_at
    word = f", last record {_ago(last)}" if last else ""
    return f" (process {run.process or '?'} on {run.host or '?'}{word})"


def _ago(moment: str) -> str:
    return f"{duration((datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds())} ago"
