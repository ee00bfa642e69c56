"""Engines by name: ZeRO stage, precision and what else they have, as `zero2-fp32-offloaded` or `zero1-bf16-muon`."""

from typing import Any

from model.shapes import ModelConfig
from stages.spec import TrainSpec
from tests.stages.specs import small_spec

PLAIN = tuple(f"zero{stage}-{precision}" for stage in (1, 2, 3) for precision in ("bf16", "fp32"))
MOMENTUM = 0.9
"""Muon's. Not DeepSpeed's default."""


def engine_spec(kind: str, config: ModelConfig, **changes: Any) -> TrainSpec:
    """The spec of an engine, with `changes`."""
    stage, precision, *more = kind.split("-")
    changes |= {"zero_stage": int(stage[-1]), "precision": precision}
    if "offloaded" in more:
        changes["offload"] = "optimizer"
    if "muon" in more:
        muon = {"name": "muon", "gradient_clipping": 0.0, "momentum": MOMENTUM}
        changes["optimizer"] = small_spec(config).optimizer.model_copy(update=muon)
    return small_spec(config, **changes)
