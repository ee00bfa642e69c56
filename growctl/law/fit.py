"""Fits the law: first to models from scratch, then what a token before a growth is worth to grown ones.

Least squares of the loss in nats, because seeds spread about as wide at every size and length, with Huber's loss, so
that a single run that went wrong counts less. Intervals: a bootstrap over clusters of whole runs.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import fmean, variance
from typing import Any, get_args

import numpy as np

from growctl.law.formula import (
    PARAMETERS,
    TERMS,
    Counts,
    Floats,
    Formula,
    HeldOut,
    Interval,
    Law,
    LawModel,
    Paths,
    measures,
)
from growctl.law.measured import Model, check_alike, read_models, read_recipe
from growctl.runs.runs import RunReport
from model.errors import UserError

DRAWS = 200
HUBER = 0.05
"""Nats beyond which a residual counts linearly: about three times the spread of seeds."""
SIGNIFICANCE = 0.01
"""The p value below which effective tokens have failed."""
FEWEST_SIZES, FEWEST_LENGTHS, FEWEST_GROWN = 4, 3, 12
"""Five parameters need three sizes and lengths, and a fourth size to leave out; a term needs two grown settings."""
_LEAST, _MOST = 0.02, 2.0  # exponents
_EQUAL_FLOPS = 0.05  # the relative difference up to which an opponent costs the same


class _Data:
    """R models, with the cluster of each."""

    def __init__(self, models: Sequence[Model], clusters: dict[Any, int], counts: Counts):
        self.models = models
        self.paths = Paths([model.path for model in models], [model.flops for model in models], counts)
        self.size_R, self.tokens_R = self.paths.size_KR[-1], self.paths.tokens_KR.sum(axis=0)
        self.loss_R = np.array([model.loss for model in models])
        self.cluster_R = np.array([clusters[model.path] for model in models])


def fit_law(runs: Sequence[RunReport], held_out: Sequence[RunReport] = (), draws: int = DRAWS) -> Law:
    """The law of the finished models of `runs`; `held_out` runs only test the law, even if `runs` lists them too. Equal
    input gives an equal law.

    Raises UserError for runs that no one law fits, or that are too few.
    """
    everything = [*runs, *held_out]
    check_alike(everything)
    tests, tests_left_out = read_models(held_out, everything)
    models, left_out = read_models(runs, everything)
    tested = {(model.path, model.seed) for model in tests}
    models = [model for model in models if (model.path, model.seed) not in tested]
    _check_enough(models)
    clusters, kinds = _clusters(models), [[m for m in models if (len(m.path) > 1) == kind] for kind in (False, True)]
    fits = {each: _fit_scratch(_Data(kinds[0], clusters, each)) for each in get_args(Counts)}
    errors = {each: _left_out_error(_Data(kinds[0], clusters, each), fit) for each, fit in fits.items()}
    counts: Counts = min(errors, key=lambda each: errors[each])
    scratch, grown = (_Data(kind, clusters, counts) for kind in kinds)
    weight_MC = _weights(scratch, len(set(clusters.values())), draws)
    draws_M5 = [_fit_scratch(scratch, fits[counts], w_C[scratch.cluster_R]) for w_C in weight_MC[1:]]
    c_M5 = np.array([fits[counts], *draws_M5])
    sizes = {m.path[0].counted(counts): m.flops / m.path[0].tokens for m in kinds[0]}
    formula = Formula(TERMS, "effective tokens", np.array(sorted(sizes.items())).T)
    c_MP, fitted, dropped = _fit_growth(grown, c_M5, weight_MC, formula)
    form_p = _f_test(c_MP, fitted, scratch, grown)
    if form_p < SIGNIFICANCE:
        other = _fit_growth(grown, c_M5, weight_MC, replace(formula, form="difference"))
        if _squares(other[0], other[1], grown) < _squares(c_MP, fitted, grown):
            c_MP, fitted, dropped = other
    residuals = [
        LawModel(name=m.name, is_grown=data is grown, flops=m.flops, measured=m.loss, predicted=float(loss))
        for data in (scratch, grown)
        for m, loss in zip(data.models, fitted.losses(c_MP[:1], data.paths)[0], strict=True)
    ]
    law = Law(
        counts=counts,
        left_out_errors=errors,
        form=fitted.form,
        form_p=form_p,
        parameters={name: Interval.of(c_MP[:, i]) for i, name in enumerate(PARAMETERS)},
        terms={name: Interval.of(c_MP[:, i]) for i, name in enumerate(fitted.terms, len(PARAMETERS))},
        dropped=dropped,
        rms={name: _rms([m for m in residuals if m.is_grown == (name == "grown")]) for name in ("scratch", "grown")},
        models=tuple(residuals),
        left_out=tuple(dict.fromkeys([*left_out, *tests_left_out])),
        ranges=_ranges(models, counts),
        axes=tuple(sorted({here.axis(after) for m in kinds[1] for here, after in pairwise(m.path)})),
        sizes=tuple(sorted(sizes.items())),
        recipe=read_recipe(runs, models),
        draws=tuple(tuple(map(float, row)) for row in c_MP[1:]),
    )
    errors_of_tests = held_out_errors(law, tests)
    return law.model_copy(update={"held_out": errors_of_tests, "rms": law.rms | {"held out": _rms(errors_of_tests)}})


def _check_enough(models: Sequence[Model]) -> None:
    lengths: dict[int, set[float]] = {}
    for model in (model for model in models if len(model.path) == 1):
        lengths.setdefault(model.path[0].num_parameters, set()).add(model.path[0].tokens)
    grown = len({model.path for model in models if len(model.path) > 1})
    if sum(len(each) >= FEWEST_LENGTHS for each in lengths.values()) < FEWEST_SIZES or grown < FEWEST_GROWN:
        found = "; ".join(f"{size:,} parameters at {len(each)}" for size, each in sorted(lengths.items()))
        raise UserError(
            f"a law needs finished models: from scratch, {FEWEST_SIZES} sizes at {FEWEST_LENGTHS} lengths each or more "
            f"(here: {found or 'none'}), and grown, {FEWEST_GROWN} settings or more (here: {grown})"
        )


def _clusters(models: Sequence[Model]) -> dict[Any, int]:
    """The cluster of each setting: those that share a run belong together."""
    cluster = {setting: number for number, setting in enumerate(dict.fromkeys(model.path for model in models))}
    for run in dict.fromkeys(model.run for model in models):
        joined = {cluster[model.path] for model in models if model.run == run}
        cluster = {setting: min(joined) if number in joined else number for setting, number in cluster.items()}
    numbers = sorted(set(cluster.values()))
    return {setting: numbers.index(number) for setting, number in cluster.items()}


def _weights(scratch: _Data, num_clusters: int, draws: int) -> Floats:
    """The weight of each cluster, equal at first and then in each draw: a Bayesian bootstrap, in which every cluster
    keeps some weight. The power widens it for the five parameters."""
    shape = max(0.1, 1 - len(PARAMETERS) / len(set(scratch.cluster_R))) ** 3
    drawn = np.random.default_rng(0).gamma(shape, 1 / shape, size=(draws, num_clusters))
    return np.concatenate([np.ones((1, num_clusters)), drawn])


def _least_squares(residual: Callable[[Floats], Any], start: Floats, weight_R: Any, bounds: Any) -> Floats:
    """Where the weighted sum of Huber's loss is least."""
    from scipy.optimize import least_squares  # slow

    def huber(z_R: Floats) -> Floats:
        root = np.sqrt(np.maximum(z_R, 1.0))
        return weight_R * np.where(z_R <= 1, [z_R, z_R**0, 0 * z_R], [2 * root - 1, 1 / root, -0.5 / root**3])

    start = np.clip(start, np.array(bounds[0]) + 1e-9, np.array(bounds[1]) - 1e-9)
    found: Floats = least_squares(residual, start, loss=huber, f_scale=HUBER, bounds=bounds, x_scale="jac").x
    return found


def _fit_scratch(data: _Data, start: Sequence[float] | None = None, weight_R: Any = 1.0) -> tuple[float, ...]:
    """E, A, a, B, b, by way of A / N^a and B / D^b at the middle of the data, which hardly depend on a and b."""
    n, d = np.log(data.size_R), np.log(data.tokens_R)
    n_middle, d_middle, lowest = n.mean(), d.mean(), data.loss_R.min()
    x = np.array([0.5 * lowest, np.log(0.3 * lowest), 0.35, np.log(0.3 * lowest), 0.35])
    if start is not None:
        E, A, a, B, b = start
        x = np.array([E, np.log(A) - a * n_middle, a, np.log(B) - b * d_middle, b])

    def residual(x: Floats) -> Floats:
        return x[0] + np.exp(x[1] - x[2] * (n - n_middle)) + np.exp(x[3] - x[4] * (d - d_middle)) - data.loss_R

    bounds = ([0, -20, _LEAST, -20, _LEAST], [lowest, 20, _MOST, 20, _MOST])
    E, A, a, B, b = _least_squares(residual, x, weight_R, bounds)
    return tuple(map(float, (E, np.exp(A + a * n_middle), a, np.exp(B + b * d_middle), b)))


def _left_out_error(data: _Data, fit: Sequence[float]) -> float:
    """The rms error of predicting the models of each size from those of the others, in nats."""
    misses: list[float] = []
    for is_out in (data.size_R == size for size in np.unique(data.size_R)):
        E, A, a, B, b = _fit_scratch(data, fit, 1.0 - is_out)
        misses += list((E + A * data.size_R**-a + B * data.tokens_R**-b - data.loss_R)[is_out])
    return float(np.sqrt(np.mean(np.square(misses))))


def _fit_growth(
    data: _Data, c_M5: Floats, weight_MC: Floats, formula: Formula
) -> tuple[Floats, Formula, dict[str, str]]:
    """All coefficients, the formula with the terms that are not dropped, and why the others are."""
    names, dropped = _told_apart(data)
    while True:
        fitted = replace(formula, terms=tuple(names))

        def fit(c_5: Floats, start: Floats, weight_C: Floats, fitted: Formula = fitted) -> Floats:
            def residual(x: Floats) -> Any:
                return fitted.losses(np.concatenate([c_5, x])[None], data.paths)[0] - data.loss_R

            free = (-np.inf, np.inf)
            return _least_squares(residual, start, weight_C[data.cluster_R], free) if len(start) else start

        first = fit(c_M5[0], np.zeros(len(names)), weight_MC[0])
        x_MT = np.array([first, *(fit(c_5, first, w_C) for c_5, w_C in zip(c_M5[1:], weight_MC[1:], strict=True))])
        intervals = {name: Interval.of(x_MT[:, i]) for i, name in enumerate(names)}
        holding = [i for i, each in enumerate(intervals.values()) if each.low <= 0 <= each.high]
        if not holding:
            return np.concatenate([c_M5, x_MT], axis=1), fitted, dropped
        weakest = names.pop(min(holding, key=lambda i: abs(x_MT[0, i]) / max(x_MT[1:, i].std(), 1e-12)))
        dropped[weakest] = f"its 95% interval holds 0: {intervals[weakest]}"


def _told_apart(data: _Data) -> tuple[list[str], dict[str, str]]:
    """The terms that the growths in the data tell apart, and why not the others."""
    paths, names, dropped = data.paths, list[str](), dict[str, str]()
    before_KR, grows_KR = np.cumsum(paths.tokens_KR, axis=0), paths.grows_KR > 0
    growths = [np.array(paths.terms(k, before_KR[k - 1]))[:, grows_KR[k]] for k in range(1, len(grows_KR))]
    columns = dict(zip(TERMS, np.concatenate(growths, axis=1), strict=True))
    for name in TERMS:
        if np.linalg.matrix_rank(np.array([columns[each] for each in (*names, name)]), tol=1e-6) == len(names):
            dropped[name] = "the grown models do not tell it apart from the terms before it"
        else:
            names.append(name)
    return names, dropped


def _f_test(c_MP: Floats, formula: Formula, scratch: _Data, grown: _Data) -> float:
    """The one-sided p value of an F test that grown models miss the law no more than those from scratch."""
    from scipy.special import fdtrc  # slow

    degrees = len(grown.models) - len(formula.terms), len(scratch.models) - len(PARAMETERS)
    first, second = _squares(c_MP, formula, grown) / degrees[0], _squares(c_MP, formula, scratch) / degrees[1]
    return float(fdtrc(*degrees, first / max(second, 1e-12)))


def _squares(c_MP: Floats, formula: Formula, data: _Data) -> float:
    return float(np.square(formula.losses(c_MP[:1], data.paths)[0] - data.loss_R).sum())


def _ranges(models: Sequence[Model], counts: Counts) -> dict[str, tuple[float, float]]:
    values: dict[str, list[float]] = {}
    for model in models:
        for name, value in measures(model.path, model.flops, counts):
            if name != "parameters" or len(model.path) == 1:
                values.setdefault(name, []).append(float(value))
    return {name: (min(each), max(each)) for name, each in values.items()}


def _rms(models: Sequence[LawModel]) -> float | None:
    return float(np.sqrt(np.mean([(m.measured - m.predicted) ** 2 for m in models]))) if models else None


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
