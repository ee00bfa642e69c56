"""How well a law predicts models that it was not fitted on, and whether its advice would have been right."""

import math
from collections.abc import Iterable, Sequence
from statistics import fmean, stdev
from typing import Any

from growctl.law.formula import HeldOut, Interval, Law
from growctl.law.measured import Model

_EQUAL_FLOPS = 0.05  # the relative difference up to which an opponent costs the same


def held_out_errors(law: Law, models: Sequence[Model]) -> tuple[HeldOut, ...]:
    """Each held-out setting against its prediction, and grown ones against the best one from scratch. The spread of
    seeds, and that of differences between two models of one seed, is pooled over the settings."""
    by_setting: dict[Any, list[Model]] = {}
    for model in models:
        by_setting.setdefault(model.setting, []).append(model)
    settings = list(by_setting.values())
    opponents = [_opponent(seeds, settings) for seeds in settings]
    differences = [_differences(seeds, opponent) for seeds, opponent in zip(settings, opponents, strict=True)]
    (spread, _), (paired, most) = _pooled([[model.loss for model in seeds] for seeds in settings]), _pooled(differences)
    found = []
    for seeds, opponent, pairs in zip(settings, opponents, differences, strict=True):
        predicted = [float(law.losses([each.path], [each.flops])[0, 0]) for each in (*seeds[:1], *opponent[:1])]
        record = HeldOut(
            name=seeds[0].name,
            is_grown=len(seeds[0].path) > 1,
            flops=seeds[0].flops,
            measured=fmean(model.loss for model in seeds),
            predicted=predicted[0],
            standard_error=None if spread is None else spread / math.sqrt(len(seeds)),
        )
        if opponent and pairs and paired is not None:
            mean, half, expected = fmean(pairs), most * paired / math.sqrt(len(pairs)), predicted[0] - predicted[1]
            update: dict[str, Any] = {"opponent": opponent[0].name, "predicted_difference": expected}
            update["measured_difference"] = Interval(estimate=mean, low=mean - half, high=mean + half)
            update["advice"] = "undecided" if abs(mean) <= half else "right" if mean * expected > 0 else "wrong"
            record = record.model_copy(update=update)
        found.append(record)
    return tuple(found)


def _opponent(seeds: Sequence[Model], settings: Iterable[Sequence[Model]]) -> Sequence[Model]:
    """The setting from scratch that ends lowest for the FLOPs of a grown one; empty without one."""
    rivals = [each for each in settings if len(each[0].path) == 1 < len(seeds[0].path)]
    rivals = [each for each in rivals if math.isclose(each[0].flops, seeds[0].flops, rel_tol=_EQUAL_FLOPS)]
    return min(rivals, key=lambda each: fmean(model.loss for model in each), default=())


def _differences(seeds: Sequence[Model], opponent: Sequence[Model]) -> list[float]:
    losses = {model.seed: model.loss for model in opponent}
    return [model.loss - losses[model.seed] for model in seeds if model.seed in losses]


def _pooled(groups: Sequence[Sequence[float]]) -> tuple[float | None, float]:
    """The standard deviation within groups, None if no group has two values; and how many of them 95% of a t
    distribution reaches to either side."""
    from scipy.special import stdtrit  # slow

    several = [group for group in groups if len(group) > 1]
    if not (degrees := sum(len(group) - 1 for group in several)):
        return None, 0.0
    squares = sum((len(group) - 1) * stdev(group) ** 2 for group in several)
    return math.sqrt(squares / degrees), float(stdtrit(degrees, 0.975))
