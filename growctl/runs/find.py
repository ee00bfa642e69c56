"""Finds the runs of a report, each ladder with its controls and without copies, and reads them from their ledgers."""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from growctl.ledger.entries import AnomalyEntry, Cost, RunEntry, ScoreEntry, StageEntry
from growctl.ledger.file import LedgerError, NothingRecorded
from growctl.ledger.ledger import Ledger
from growctl.runs.directory import ladder_of, missing_note
from growctl.runs.runs import EvaluationPoint, RunReport, StageReport
from growctl.runs_dir import CONTROL_INFIX, CONTROLS_LEFT_OUT, IMPORTED, RunPaths, RunsPaths
from growctl.text.suggestion import nearest
from model.errors import UserError
from stages.checkpoint.manifest import CheckpointError, manifest_hash, read_manifest
from stages.generate.text_samples import TextSample, read_samples
from stages.stage_dir import MANIFEST_NAME, StagePaths

_ROUNDING = 1e-6
"""The relative difference up to which two sums of FLOPs agree."""


class RunNotFoundError(UserError):
    """There is no run of the requested name."""


def find_runs(runs_dir: Path, names: Sequence[str] = ()) -> list[RunReport]:
    """The runs called `names`, or all runs in `runs_dir`; each ladder is followed by its controls.

    The name of a set, such as the seeds of one schedule, stands for its ladders, unless a run has that name.

    Raises RunNotFoundError for an unknown name or if there are no runs at all, LedgerError if the ledger of a requested
    run cannot be read.
    """
    paths = find_ledgers(runs_dir)
    runs: dict[str, RunReport] = {}
    unreadable: dict[str, LedgerError] = {}
    for name, path in paths.items():
        try:
            runs[name] = read_run(path)
        except LedgerError as error:
            unreadable[name] = error
    sets: dict[str, list[str]] = {}
    for run in runs.values():
        if run.group is not None and run.control is None:
            sets.setdefault(run.group, []).append(run.name)
    _check_known(names, [*paths, *sets], runs_dir)
    names = [member for name in names for member in ([name] if name in paths else sets[name])]
    for name, why in unreadable.items():
        is_asked_for = not names or name.partition(CONTROL_INFIX)[0] in names
        if name in names or (is_asked_for and not isinstance(why, NothingRecorded)):  # else it was only just created
            raise why
    if not runs:
        raise RunNotFoundError(f"there are no runs in {runs_dir} yet")
    runs = _with_their_ladders(_without_copies(runs, names))
    wanted: dict[str, RunReport] = {}
    ladders_first = sorted(runs, key=lambda name: (runs[name].control is not None, name))
    for name in [name for name in names if name in runs] or ladders_first:
        controls = [other for other in runs if runs[other].control_of == name]
        controls.sort(key=lambda other: (runs[other].control, runs[other].cumulative_flops))
        wanted |= {member: runs[member] for member in (name, *controls) if member not in wanted}
    return list(wanted.values())


def find_ledgers(runs_dir: Path, names: Sequence[str] = ()) -> dict[str, Path]:
    """The ledgers of the runs called `names`, or of all that have begun in `runs_dir`, by the name of the run.

    Such a ledger may be lost; whoever opens it says so.

    Raises RunNotFoundError for an unknown name or if there are no runs at all.
    """
    paths = {run.directory.name: run.ledger for run in RunsPaths(runs_dir).all_runs() if run.has_begun()}
    if not paths:
        raise RunNotFoundError(f"there are no runs in {runs_dir} yet")
    _check_known(names, paths, runs_dir)
    return {name: paths[name] for name in names or paths}


def _check_known(names: Sequence[str], known: Collection[str], runs_dir: Path) -> None:
    for name in names:
        if name not in known:
            raise RunNotFoundError(f"no run {name!r} in {runs_dir}; {nearest(name, known)}")


def _without_copies(runs: dict[str, RunReport], names: Sequence[str]) -> dict[str, RunReport]:
    """Keeps one of the runs with the same id and the same ends, and notes the others: preferably one of `names`, then
    one that was not renamed, then the first by name."""
    kept: dict[tuple[Any, ...], RunReport] = {}
    for run in sorted(runs.values(), key=lambda run: (run.name not in names, run.name != run.recorded_name, run.name)):
        shown = kept.setdefault((run.run_id, _ends(run)), run)
        if shown is not run:
            note = f"{run.name} is a copy of {shown.name} and is left out."
            kept[run.run_id, _ends(run)] = replace(shown, notes=(*shown.notes, note))
    return {run.name: run for run in sorted(kept.values(), key=lambda run: run.name)}


def _ends(run: RunReport) -> tuple[tuple[str, int, float | None, bool], ...]:
    """How far the parts of a run have come, which tells whether copies were trained on."""
    return tuple((part.name, part.num_steps, part.validation_loss, part.finished) for part in run.parts)


def _with_their_ladders(runs: dict[str, RunReport]) -> dict[str, RunReport]:
    """The runs, with each control's `control_of` set to the directory name of its ladder."""
    run_ids = {name: run.run_id for name, run in runs.items() if run.control is None}

    def folder(run: RunReport) -> str | None:
        prefix = run.name.removesuffix(run.recorded_name) if run.name != run.recorded_name else ""
        return run.control_of and ladder_of(run.control_of, run.ladder_id, run_ids, prefix)

    return {name: replace(run, control_of=folder(run)) for name, run in runs.items()}


def find_pair(first: str, second: str, runs_dir: Path) -> tuple[RunReport, RunReport]:
    """The runs called `first` and `second`: each a name in `runs_dir`, or the path of a run's directory.

    Runs of the same name, in two runs directories, are named by their paths. Raises RunNotFoundError for an unknown
    run, UserError if both are the same run or one has no evaluation, LedgerError if a ledger cannot be read.
    """
    paths = [_ledger(name, runs_dir) for name in (first, second)]
    a, b = map(read_run, paths)
    if a.run_id == b.run_id and _ends(a) == _ends(b):
        raise UserError(f"{first} and {second} are the same run, or copies of it; name two different runs")
    for run, path in zip((a, b), paths, strict=True):
        if not run.points and not any(part.validation_loss is not None for part in run.parts):
            raise UserError(f"{path.parent}: the run has no evaluation yet; compare it once it has one")
    if a.name == b.name:
        a, b = (replace(run, name=str(path.parent)) for run, path in zip((a, b), paths, strict=True))
    return a, b


def _ledger(name: str, runs_dir: Path) -> Path:
    """The ledger of the run called `name` in `runs_dir`, or else in the directory `name`."""
    by_path, by_name = RunPaths(Path(name)), RunsPaths(runs_dir).run(name)
    is_name = by_name.directory.name == name and by_name.ledger.is_file()
    if not is_name and by_path.ledger.is_file():
        return by_path.ledger
    return find_ledgers(runs_dir, [name])[name]


def read_run(path: Path) -> RunReport:
    """The report of the run whose ledger is `path`; raises LedgerError if the ledger cannot be read."""
    paths, stages, releases = RunPaths(path.parent), list[StageReport](), list[StageReport]()
    points: list[EvaluationPoint] = []
    anomalies: list[tuple[str, AnomalyEntry]] = []
    notes: list[str] = []
    with Ledger(path, read_only=True) as ledger:
        run, machines, relaunched = ledger.run(), tuple(ledger.machines()), tuple(ledger.relaunched())
        for stage in ledger.stages():
            place = paths.stage(len(stages) - bool(stage.branch_of), stage.branch_of or stage.name)
            place = place.release if stage.branch_of else place
            part = _stage_report(ledger, run, stage, stages, place)
            notes += _notes(part, place, is_here=paths.stages.is_dir())
            anomalies += [(stage.name, anomaly) for anomaly in ledger.anomalies(stage.name)]
            if stage.branch_of:
                releases.append(part)
                continue
            spent = stages[-1].cumulative_flops if stages else 0.0
            points += [
                EvaluationPoint(
                    *(stage.name, e.point, spent + e.step * part.step_flops, e.loss, e.perplexity),
                    bits_per_byte=e.bits_per_byte,
                    step=e.step,
                )
                for e in ledger.evaluations(stage.name)
                if e.loss is not None and e.perplexity is not None and math.isfinite(e.perplexity)
            ]
            stages.append(part)
    notes += [f"{CONTROLS_LEFT_OUT.capitalize()}."] if run.control is None and paths.no_controls.exists() else []
    notes += [f"{IMPORTED.capitalize()}."] if paths.imported.exists() else []
    return RunReport(
        **vars(run) | {"name": path.parent.name},
        recorded_name=run.name,
        stages=tuple(stages),
        releases=tuple(releases),
        points=tuple(points),
        directory=path.parent,
        relaunched=relaunched,
        machines=machines,
        anomalies=tuple(anomalies),
        notes=tuple(notes),
    )


def _notes(part: StageReport, place: StagePaths, is_here: bool) -> Iterator[str]:
    """What the reader must know of a stage beside its figures; `is_here`: its run has files here."""
    if part.finished and is_here and (note := missing_note(place)):
        yield f"Incomplete: {note}. The figures of the stage are from the ledger."
    if not part.cost_is_whole:
        yield (
            f"The ledger's rows of {part.name} do not sum up to the FLOPs in the manifest of its final checkpoint: "
            "rows are missing, so its cost is not known. Run the schedule again to book them; if they stay "
            "missing, remove ledger.db before."
        )


def _stage_report(
    ledger: Ledger, run: RunEntry, stage: StageEntry, before: Sequence[StageReport], place: StagePaths
) -> StageReport:
    """The report of a stage, or of a release, after the stages `before`, whose files are in `place`."""
    cost, finished = ledger.stage_cost(stage.name), ledger.finished(stage.name)
    evaluations = ledger.evaluations(stage.name)
    latest = {evaluation.point: evaluation for evaluation in evaluations}
    final, after_growth = latest.get("final") if finished else None, latest.get("after_growth")
    spent = before[-1].cumulative_flops if before else 0.0
    previous_loss = before[-1].validation_loss if before else None
    if run.base and not before and after_growth and after_growth.num_tokens == run.base.validation_tokens:
        previous_loss = run.base.validation_loss  # both were measured on the same validation tokens
    start_size = before[-1].num_parameters if before else None
    grown = bool(run.base or before) and not stage.branch_of and stage.num_parameters != start_size
    same = ("name", "num_parameters", "num_read_parameters", "num_layers", "sequence_length", "tokens_per_step")
    return StageReport(
        **{name: getattr(stage, name) for name in (*same, "branch_of", "decayed")},
        step_flops=stage.step_flops.total,
        planned_steps=stage.num_steps,
        finished=finished,
        num_steps=cost.trained.steps,
        train_tokens=cost.trained.tokens,
        flops=cost.model.flops.total,
        cumulative_flops=spent + cost.model.flops.total,
        replayed_flops=cost.replayed.flops.total,
        rolled_back_flops=cost.rolled_back.flops.total,
        reused_flops=cost.reused.flops.total,
        reused_from=tuple(dict.fromkeys(row.paid_by for row in ledger.work(stage.name) if row.paid_by)),
        evaluation_flops=cost.spent.evaluation_flops + cost.reused.evaluation_flops,
        cost_is_whole=_agrees(cost.trained, place),
        spent=cost.spent,
        replayed=cost.replayed,
        model_cost=cost.model,
        mfu=cost.spent.mfu,
        validation_loss=final.loss if final else None,
        own_context_loss=final.own_context_loss if final else None,
        perplexity=final.perplexity if final else None,
        bits_per_byte=final.bits_per_byte if final else None,
        top1=final.top1 if final else None,
        top5=final.top5 if final else None,
        evaluated_tokens=final.num_tokens if final else None,
        evaluation_precision=final.precision if final else None,
        by_source=(final or evaluations[-1]).by_source if evaluations else {},
        loss_before_growth=previous_loss if grown else None,
        loss_after_growth=after_growth.loss if after_growth and grown else None,
        samples=_samples(place) if finished else (),
        scores=newest_scores(ledger.scores(stage.name)),
    )


def newest_scores(scores: Sequence[ScoreEntry]) -> tuple[ScoreEntry, ...]:
    """The scores of the newest final checkpoint among `scores`, oldest first; of equal evaluations the newest."""
    finals = [score for score in scores if score.checkpoint == StagePaths(Path()).final.name]
    newest: dict[tuple[str, str], ScoreEntry] = {}
    for score in finals:
        if score.manifest == finals[-1].manifest:
            key = (score.metric, score.evaluation)
            newest.pop(key, None)
            newest[key] = score
    return tuple(newest.values())


def _agrees(trained: Cost, place: StagePaths) -> bool:
    """Whether the rows of a stage sum up to the FLOPs that its final checkpoint says it cost, if that is here."""
    try:
        history = read_manifest(place.final).lineage.history
    except (CheckpointError, OSError):
        return True
    if len(history) < 2:
        return True
    own = history[-1].cost.flops.total - history[-2].cost.flops.total
    return math.isclose(own, trained.flops.total, rel_tol=_ROUNDING)


def _samples(place: StagePaths) -> tuple[TextSample, ...]:
    """The texts of a finished stage; none if a former checkpoint wrote them."""
    texts = read_samples(place.samples)
    has_weights = (place.final / MANIFEST_NAME).is_file()  # else they were removed, to save space
    if texts is None or (has_weights and manifest_hash(place.final) != texts.checkpoint):
        return ()
    return texts.samples
