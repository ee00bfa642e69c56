"""An inspection as JSON values."""

import math
from dataclasses import asdict
from typing import Any

from growctl.inspect.inspection import Inspection, Subject
from growctl.inspect.rows import NOTES
from stages.inspect.facts import DEAD_BELOW, THRESHOLDS


def document(inspection: Inspection) -> dict[str, Any]:
    """Everything that was measured. Numbers that are not finite are null."""
    found: dict[str, Any] = {
        "text": asdict(inspection.text),
        "thresholds": list(THRESHOLDS),
        "dead_below": DEAD_BELOW,
        "notes": list(NOTES),
        "models": [_model(subject) for subject in inspection.subjects],
    }
    return {key: _finite(part) for key, part in found.items()}


def _model(subject: Subject) -> dict[str, Any]:
    norms = subject.training
    training = norms and {
        "median": norms.median,
        "largest_over_median": norms.largest_ratio,
        "step_to_step": norms.step_ratio,
        "num_rejected": norms.num_rejected,
        "norms": [list(pair) for pair in norms.norms],
    }
    facts = asdict(subject.facts)
    layers = facts.pop("layers")
    return {
        "name": subject.name,
        "kind": subject.kind,
        "scores": subject.scores,
        **facts,
        "depth_ratio": subject.facts.depth_ratio,
        "num_dead": subject.facts.num_dead,
        "training": training,
        "layers": layers,
    }


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    return [_finite(part) for part in value] if isinstance(value, list | tuple) else value
