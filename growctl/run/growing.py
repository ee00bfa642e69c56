"""The growth before a stage: expands a checkpoint by the schedule's policy, and judges what that did to the loss."""

from pathlib import Path

from growctl.ladder.stage_plans import StagePlan
from growctl.schedule.blocks import Schedule
from model.config import TransformerConfig
from model.policy import EXACT_GROWTH
from stages.checkpoint.manifest import Manifest, read_manifest
from stages.stage_dir import StagePaths


def grow(schedule: Schedule, plan: StagePlan, previous: Path, initial: Path) -> Manifest:
    """Writes `initial`, the checkpoint `previous` grown to the size of stage `plan`. Returns its manifest."""
    from stages.grow.expand import expand, expand_transformer

    growth, seed = schedule.growth, schedule.seed
    if isinstance(plan.model, TransformerConfig):
        assert growth.operator is not None
        return expand_transformer(previous, initial, plan.model, growth.operator, noise=growth.copy_noise, seed=seed)
    return expand(
        previous,
        initial,
        **plan.growth._asdict(),
        policy=growth.policy(),
        seed=seed,
    )


def growth_message(plan: StagePlan, stage: StagePaths, before: float | None, after: float) -> str | None:
    """A message if a growth moved the validation loss: a warning if its policy preserves the function.

    `before` and `after` are in nats; None if the loss before is not known.
    """
    if before is None or abs(after - before) <= EXACT_GROWTH:
        return None
    moved = f"growing to {plan.name} moved the validation loss by {after - before:+.2e} nats, from {before:.6f}"
    growth = read_manifest(stage.initial).lineage.growth
    if growth is None or not growth.preserves:
        return moved
    return (
        f"warning: {moved}; it should move by at most {EXACT_GROWTH:g}. Please report this and attach {stage.directory}"
    )
