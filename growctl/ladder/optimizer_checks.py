"""Checks which optimizer goes with the rest of a schedule."""

from collections.abc import Iterator

from growctl.schedule.blocks import Schedule
from growctl.schedule.optimizer_block import MOMENTUM
from stages.engine.muon_limits import muon_conflicts


def check_optimizer(schedule: Schedule) -> Iterator[str]:
    """One line per key that does not go with the optimizer."""
    optimizer, launch = schedule.optimizer, schedule.launch
    if optimizer.name == "muon":
        yield from muon_conflicts(
            gradient_clipping=optimizer.gradient_clipping,
            offload=launch.offload,
            zero_stage=launch.zero_stage,
            precision=schedule.training.precision,
        )
        return
    if optimizer.muon_lr_scale is not None:
        yield f"optimizer.muon_lr_scale = {optimizer.muon_lr_scale:g}: is for optimizer.name = 'muon'; leave it out"
    if optimizer.momentum != MOMENTUM:
        yield (
            f"optimizer.momentum = {optimizer.momentum:g}: is for optimizer.name = 'muon'; AdamW's is the first of "
            "optimizer.betas"
        )
