"""What the ledger records of a run before any work: the run itself, and its stages and releases."""

from growctl.ladder.caveats import control_caveats, decays
from growctl.ladder.conditions import comparison_conditions, data_conditions
from growctl.ladder.releases import has_decayed
from growctl.ladder.stage_plans import StagePlan
from growctl.ledger.entries import RunEntry, StageEntry
from growctl.run.dataset import RecordedLadder
from growctl.run.requests import RunRequest
from growctl.run.start import Start
from stages.data.dataset import DatasetManifest


def run_entry(
    request: RunRequest,
    run_id: str,
    dataset: str,
    manifest: DatasetManifest,
    ladder: RecordedLadder | None,
    start: Start | None,
) -> RunEntry:
    """The run. `dataset` is the path, `manifest` that of the dataset; `ladder` is that of a control."""
    schedule, caveats = request.schedule, []
    if ladder and request.control:
        caveats = control_caveats(request.control, schedule, ladder.last_size, ladder.entry.base_flops)
    return RunEntry(
        name=request.name,
        schedule=request.label,
        control=request.control,
        control_of=request.control_of,
        seed=schedule.seed,
        dataset=dataset,
        dataset_fingerprint=manifest.fingerprint,
        conditions=comparison_conditions(schedule) | data_conditions(manifest),
        run_id=run_id,
        ladder_id=ladder.entry.run_id if ladder else None,
        decays=decays(schedule),
        caveats=caveats,
        base=start.entry(manifest) if start else None,
        validation_documents=manifest.splits["validation"].num_documents,
        validation_tokens=manifest.splits["validation"].num_tokens,
        training_tokens=manifest.splits["train"].num_tokens,
        group=request.run_set.group if request.run_set else None,
        overrides=request.run_set.overrides if request.run_set else {},
    )


def stage_entry(plan: StagePlan) -> StageEntry:
    """A stage or a release."""
    return StageEntry(
        name=plan.name,
        num_parameters=plan.num_parameters,
        num_embedding_parameters=plan.num_embedding_parameters,
        budget_tokens=plan.budget_tokens,
        num_steps=plan.num_steps,
        tokens_per_step=plan.tokens_per_step,
        step_flops=plan.step_flops,
        evaluation_flops_per_token=plan.evaluation_flops_per_token,
        own_evaluation_flops_per_token=plan.own_evaluation_flops_per_token,
        sequence_length=plan.batch.sequence_length,
        num_layers=plan.model.num_layers,
        branch_of=plan.branch_of,
        decayed=has_decayed(plan),
    )
