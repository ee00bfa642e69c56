"""Builds the part of a worker's spec that follows from the schedule."""

from typing import Any

from growctl.ladder.stage_plans import StagePlan
from growctl.schedule.batches import evaluation_length, longest_context
from growctl.schedule.blocks import Schedule
from stages.spec import SlopeTrigger, TrainSpec


def worker_spec(schedule: Schedule, plan: StagePlan, **attempt: Any) -> TrainSpec:
    """The worker's spec of one stage. `attempt` adds the fields of one attempt, and may replace any other."""
    checkpoint = schedule.checkpoint
    settings: dict[str, Any] = {
        "stage": plan.name,
        "model": plan.model,
        "seed": schedule.seed,
        "num_steps": plan.num_steps,
        "batch_size": plan.batch.batch_size,
        "sequence_length": plan.batch.sequence_length,
        "window_length": longest_context(schedule),
        "evaluation_length": evaluation_length(schedule),
        "packing": schedule.data.packing,
        "attended_tokens": (schedule.data.attended_tokens or {}).get(str(plan.batch.sequence_length)),
        "learning_rate": plan.learning_rate,
        "optimizer": schedule.optimizer.optimizer(plan.model.hidden_size),
        "generations": plan.generations,
        "ramp_steps": plan.ramp_steps,
        "anneal_steps": plan.anneal_steps,
        "trigger": slope_trigger(schedule, plan),
        "anomalies": schedule.anomalies.policy(),
        "zero_stage": schedule.launch.zero_stage,
        "offload": schedule.launch.offload,
        "kernels": schedule.launch.kernels,
        "recompute_every": schedule.launch.recompute_every,
        "precision": schedule.training.precision,
        "log_every": schedule.training.log_every,
        "evaluate_every": schedule.evaluation.every,
        "checkpoint_every": checkpoint.every,
        "keep_checkpoints": checkpoint.keep,
        "keep_trunk": checkpoint.keep_trunk and not plan.branch_of,
        "keep_every_steps": checkpoint.keep_every and checkpoint.keep_every * checkpoint.every,
        "evaluation_sequences": schedule.evaluation.max_sequences,
        "hang_seconds": float(schedule.launch.hang_timeout),
        "peak_flops": schedule.launch.hardware.flops,
        "price_per_device_hour": schedule.launch.hardware.price_per_device_hour,
    }
    return TrainSpec(**(settings | attempt))


def slope_trigger(schedule: Schedule, plan: StagePlan) -> SlopeTrigger | None:
    """The rule that may end a stage early; None without `growth.slope`, for the last stage and for releases."""
    growth = schedule.growth
    if growth.slope is None or plan.branch_of or plan.index + 1 == len(schedule.stages):
        return None
    return SlopeTrigger(slope=growth.slope, window=growth.slope_window, step_flops=plan.step_flops.total)
