"""How well a law predicts models that it was not fitted on, and whether its advice would have been right."""

import math
from collections.abc import Sequence
from statistics import fmean, variance
from typing import Any

from growctl.law.formula import HeldOut, Interval, Law
from growctl.law.measured import Model

_EQUAL_FLOPS = 0.05  # the relative difference up to which an opponent costs the same


def held_out_errors(law: Law, models: Sequence[Model]) -> tuple[HeldOut, ...]:
    """Each held-out setting against its prediction, and grown ones against the best one from scratch. The spread of
    seeds is pooled over all settings."""
    from scipy.special import stdtrit  # slow

    settings: dict[Any, list[Model]] = {}
    for model in models:
        settings.setdefault(model.path, []).append(model)
    losses = [[model.loss for model in seeds] for seeds in settings.values()]
    degrees = sum(len(each) - 1 for each in losses)
    squares = sum(variance(each) * (len(each) - 1) for each in losses if len(each) > 1)
    spread, most = (math.sqrt(squares / degrees), float(stdtrit(degrees, 0.975))) if degrees else (None, 0.0)
    records = [_record(law, seeds, spread) for seeds in settings.values()]
    return tuple(_against(record, records, most) if record.is_grown else record for record in records)


def _record(law: Law, seeds: Sequence[Model], spread: float | None) -> HeldOut:
    return HeldOut(
        name=seeds[0].name,
        is_grown=len(seeds[0].path) > 1,
        flops=seeds[0].flops,
        measured=fmean(model.loss for model in seeds),
        predicted=float(law.losses(seeds[0].path, seeds[0].flops)[0]),
        standard_error=None if spread is None else spread / math.sqrt(len(seeds)),
    )


def _against(grown: HeldOut, records: Sequence[HeldOut], most: float) -> HeldOut:
    """`grown`, compared with the best held-out model from scratch of equal FLOPs."""
    rivals = [each for each in records if not each.is_grown]
    rivals = [each for each in rivals if math.isclose(each.flops, grown.flops, rel_tol=_EQUAL_FLOPS)]
    best = min(rivals, key=lambda each: each.measured, default=None)
    if best is None or grown.standard_error is None or best.standard_error is None:
        return grown
    expected, mean = grown.predicted - best.predicted, grown.measured - best.measured
    half = most * math.hypot(grown.standard_error, best.standard_error)
    advice = "undecided" if abs(mean) <= half else "right" if mean * expected > 0 else "wrong"
    update: dict[str, Any] = {"opponent": best.name, "predicted_difference": expected, "advice": advice}
    update["measured_difference"] = Interval(estimate=mean, low=mean - half, high=mean + half)
    return grown.model_copy(update=update)
