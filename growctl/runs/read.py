"""Reads the cost and quality of every stage of a run from its ledger."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from growctl.ledger.books import UNKNOWN
from growctl.ledger.entries import AnomalyEntry, Cost, RunEntry, ScoreEntry, StageEntry
from growctl.ledger.ledger import Ledger
from growctl.runs.runs import EvaluationPoint, RunReport, StageReport
from growctl.runs_dir import CONTROLS_LEFT_OUT, IMPORTED, RunPaths
from stages.checkpoint.manifest import CheckpointError, manifest_hash, read_manifest
from stages.generate.text_samples import TextSample, read_samples
from stages.stage_dir import MANIFEST_NAME, StagePaths

_ROUNDING = 1e-6
"""The relative difference up to which two sums of FLOPs agree."""


def read_run(path: Path) -> RunReport:
    """The report of the run whose ledger is `path`; raises LedgerError if the ledger cannot be read."""
    with Ledger.open(path, read_only=True) as ledger:
        run, machines, relaunched = ledger.run(), tuple(ledger.machines()), tuple(ledger.relaunched())
        stages: list[StageReport] = []
        releases: list[StageReport] = []
        points: list[EvaluationPoint] = []
        anomalies: list[tuple[str, AnomalyEntry]] = []
        for stage in ledger.stages():
            anomalies += [(stage.name, anomaly) for anomaly in ledger.anomalies(stage.name)]
            if stage.branch_of:
                releases.append(_stage_report(ledger, run, stage, stages, path.parent))
                continue
            spent = stages[-1].cumulative_flops if stages else run.base_flops or 0.0
            points += [
                EvaluationPoint(
                    *(stage.name, e.point, spent + e.step * stage.step_flops.total, e.loss, e.perplexity),
                    bits_per_byte=e.bits_per_byte,
                    step=e.step,
                )
                for e in ledger.evaluations(stage.name)
                if e.loss is not None and e.perplexity is not None and math.isfinite(e.perplexity)
            ]
            stages.append(_stage_report(ledger, run, stage, stages, path.parent))
    return RunReport(
        name=path.parent.name,
        recorded_name=run.name,
        run_id=run.run_id,
        schedule=run.schedule,
        control=run.control,
        control_of=run.control_of,
        ladder_id=run.ladder_id,
        stages=tuple(stages),
        releases=tuple(releases),
        points=tuple(points),
        dataset_fingerprint=run.dataset_fingerprint,
        directory=path.parent,
        dataset=run.dataset,
        conditions=run.conditions,
        relaunched=relaunched,
        decays=run.decays,
        caveats=tuple(run.caveats),
        precisions=frozenset(precision for _, _, precision in machines) - {UNKNOWN},
        anomalies=tuple(anomalies),
        machines=machines,
        base=run.base,
        group=run.group,
        overrides=run.overrides,
        seed=run.seed,
        validation_documents=run.validation_documents,
        validation_tokens=run.validation_tokens,
        training_tokens=run.training_tokens,
        notes=tuple(_notes(run, RunPaths(path.parent), stages, releases)),
    )


def _notes(
    run: RunEntry, paths: RunPaths, stages: Sequence[StageReport], releases: Sequence[StageReport]
) -> Iterator[str]:
    """What the reader must know of a run beside its figures, one sentence each."""
    finals = {stage.name: paths.stage(index, stage.name) for index, stage in enumerate(stages)}
    finals |= {release.name: finals[release.branch_of].release for release in releases if release.branch_of in finals}
    for part in (*stages, *releases):
        files = (finals[part.name].final, finals[part.name].metrics)
        missing = next((path for path in files if not path.exists()), None)
        if part.finished and paths.stages.is_dir() and missing:
            yield (
                f"Incomplete: {missing} is missing. If this is a copy, copy the run again. The figures "
                "of the stage are from the ledger."
            )
        if not part.cost_is_whole:
            yield (
                f"The ledger's rows of {part.name} do not sum up to the FLOPs in the manifest of its final checkpoint: "
                "rows are missing, so its cost is not known. Run the schedule again to book them; if they stay "
                "missing, remove ledger.db before."
            )
    if run.control is None and paths.no_controls.exists():
        yield f"{CONTROLS_LEFT_OUT.capitalize()}."
    if paths.imported.exists():
        yield f"{IMPORTED.capitalize()}."


def _stage_report(
    ledger: Ledger, run: RunEntry, stage: StageEntry, before: Sequence[StageReport], directory: Path
) -> StageReport:
    """The report of a stage, or of a release, after the stages `before`, of the run in `directory`."""
    cost, finished = ledger.stage_cost(stage.name), ledger.finished(stage.name)
    work = ledger.work(stage.name)
    evaluations = ledger.evaluations(stage.name)
    latest = {evaluation.point: evaluation for evaluation in evaluations}
    final, after_growth = latest.get("final") if finished else None, latest.get("after_growth")
    spent = before[-1].cumulative_flops if before else run.base_flops or 0.0
    previous_loss = before[-1].validation_loss if before else None
    if run.base and not before and after_growth and after_growth.num_tokens == run.base.validation_tokens:
        previous_loss = run.base.validation_loss  # both were measured on the same validation tokens
    start_size = before[-1].num_parameters if before else None
    grown = bool(run.base or before) and not stage.branch_of and stage.num_parameters != start_size
    return StageReport(
        name=stage.name,
        num_parameters=stage.num_parameters,
        num_embedding_parameters=stage.num_embedding_parameters,
        num_steps=cost.trained.steps,
        train_tokens=cost.trained.tokens,
        flops=cost.model.flops.total,
        reused_flops=cost.reused.flops.total,
        reused_from=tuple(dict.fromkeys(row.paid_by for row in work if row.paid_by)),
        cumulative_flops=spent + cost.model.flops.total,
        replayed_flops=cost.replayed.flops.total,
        rolled_back_flops=cost.rolled_back.flops.total,
        evaluation_flops=cost.spent.evaluation_flops + cost.reused.evaluation_flops,
        evaluated_tokens=final.num_tokens if final else None,
        evaluation_precision=final.precision if final else None,
        cost_is_whole=_agrees(cost.trained, directory, stage),
        recomputed_flops=cost.spent.recomputed_flops,
        wall_seconds=cost.spent.wall_seconds,
        device_seconds=cost.spent.device_seconds,
        replayed_device_seconds=cost.replayed.device_seconds,
        validation_loss=final.loss if final else None,
        perplexity=final.perplexity if final else None,
        bits_per_byte=final.bits_per_byte if final else None,
        by_source=(final or evaluations[-1]).by_source if evaluations else {},
        loss_before_growth=previous_loss if grown else None,
        loss_after_growth=after_growth.loss if after_growth and grown else None,
        finished=finished,
        branch_of=stage.branch_of,
        decayed=stage.decayed,
        samples=_samples(directory, stage) if finished else (),
        scores=newest_scores(ledger.scores(stage.name)),
        step_seconds=cost.spent.step_seconds,
        mfu=cost.spent.mfu,
        peak_gpu_bytes=max((row.peak_gpu_bytes for row in work if row.peak_gpu_bytes is not None), default=None),
        peak_resident_bytes=max(
            (row.peak_resident_bytes for row in work if row.peak_resident_bytes is not None), default=None
        ),
        gpu_joules=cost.spent.gpu_joules,
        cpu_joules=cost.spent.cpu_joules,
        money=cost.spent.money,
        replayed_gpu_joules=cost.replayed.gpu_joules,
        replayed_cpu_joules=cost.replayed.cpu_joules,
        replayed_money=cost.replayed.money,
        tokens_per_step=stage.tokens_per_step,
        step_flops=stage.step_flops.total,
        sequence_length=stage.sequence_length,
        num_layers=stage.num_layers,
        own_context_loss=final.own_context_loss if final else None,
        model_cost=cost.model,
        planned_steps=stage.num_steps,
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


def _part_paths(directory: Path, stage: StageEntry) -> StagePaths | None:
    """Where a stage, or a release, of the run in `directory` lies; None if it is not here."""
    for _, name, paths in RunPaths(directory).stages_found():
        if name == (stage.branch_of or stage.name):
            return paths.release if stage.branch_of else paths
    return None


def _agrees(trained: Cost, directory: Path, stage: StageEntry) -> bool:
    """Whether the rows of a stage sum up to the FLOPs that its final checkpoint says it cost, if that is here."""
    paths = _part_paths(directory, stage)
    try:
        history = read_manifest(paths.final).lineage.history if paths else ()
    except (CheckpointError, OSError):
        return True
    if len(history) < 2:
        return True
    own = history[-1].cost.flops.total - history[-2].cost.flops.total
    return math.isclose(own, trained.flops.total, rel_tol=_ROUNDING)


def _samples(directory: Path, stage: StageEntry) -> tuple[TextSample, ...]:
    """The texts of a stage, or of a release, of the run in `directory`; none if a former checkpoint wrote them."""
    if paths := _part_paths(directory, stage):
        texts = read_samples(paths.samples)
        known = (paths.final / MANIFEST_NAME).is_file()  # else the weights were removed, to save space
        if texts and (not known or manifest_hash(paths.final) == texts.checkpoint):
            return texts.samples
    return ()
