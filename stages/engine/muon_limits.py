"""What a stage must be set to so that DeepSpeed's Muon computes and keeps everything in float32.

Imports no torch.
"""

from collections.abc import Iterator

from model.precision import RequestedPrecision
from stages.spec import Offload, ZeroStage


def muon_conflicts(
    *, gradient_clipping: float, offload: Offload, zero_stage: ZeroStage, precision: RequestedPrecision
) -> Iterator[str]:
    """One line for each key of a schedule with which growctl does not run Muon. docs/muon.md gives the reasons."""
    with_muon = "with optimizer.name = 'muon'"
    if gradient_clipping:
        yield (
            f"optimizer.gradient_clipping = {gradient_clipping:g}: must be 0 {with_muon}; DeepSpeed would scale down "
            "the orthogonalised updates instead of the gradients"
        )
    if offload != "none":
        yield f"launch.offload = {offload!r}: must be 'none' {with_muon}, whose momentum stays on the devices"
    if zero_stage == 2 and precision != "fp32":
        yield (
            f"launch.zero_stage = 2: needs training.precision = 'fp32' {with_muon}, because DeepSpeed would round the "
            "momentum to bf16; use 1 or 3"
        )
