"""What a hostile reader tries on the judge, each with the answer that is right."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from growctl.analysis.results import MOST_PAIRS, Results, results
from growctl.runs.find import find_runs
from tests.growctl.analysis.ladders import CURVE, LAST, RELEASE, WORK, against, grown, noise, seed_of
from tests.growctl.invented_runs import SMALL, FakeRun

SEEDS = (0, 1, 2)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def judged(runs: Path) -> Results:
    return results(find_runs(runs))


def rate(peak: float) -> dict[str, Any]:
    return {"learning_rate.peak": peak}


def headline(runs: Path) -> tuple[str, str]:
    """The outcome of the only headline, and its words."""
    [verdict] = judged(runs).headlines
    return verdict.outcome, " ".join([verdict.claim, *verdict.cautions])


@pytest.mark.parametrize("kind", ["single-jump", "official-growth"])
def test_controls_of_a_ladder_that_a_slope_ends_are_one_arm_although_their_steps_differ(runs: Path, kind: str) -> None:
    for seed in SEEDS:
        ladder = seed_of(runs, seed, 1.28 + noise(seed), **{"growth.when": "slope"})
        stages = [SMALL, replace(LAST, num_steps=600 + 10 * seed)]
        known: dict[str, Any] = {"ladder_id": ladder.entry.run_id, "seed": seed, "growth.when": "fixed"}
        grown(runs, f"{ladder.entry.name}-control-{kind}", 1.33 + noise(seed, 1), stages, kind=kind, **known)
    [ladders] = judged(runs).ladders
    assert [(arm.name, len(arm.losses)) for arm in ladders.arms] == [("ladder", 3), (kind, 3)]


def test_no_ladder_loses_to_one_that_diverged_with_a_seed(runs: Path) -> None:
    for seed in SEEDS:
        seed_of(runs, seed, 1.34 + noise(seed), "one")
        seed_of(runs, seed, math.inf if seed == 2 else 1.28 + noise(seed, 1), "other", **rate(0.002))
    [pair] = judged(runs).pairs
    assert pair.verdict is not None
    assert (pair.verdict.outcome, "other diverged with 1 seed of 3" in pair.verdict.claim) == ("unknown", True)


@pytest.mark.parametrize(
    ("budget", "seeds", "outcome"),
    [(4.0, (2,), "won"), (4.0, SEEDS, "won"), (2.0, (2,), "unknown"), (2.0, SEEDS, "unknown"), (1.0, SEEDS, "unknown")],
    ids=str,
)
def test_a_control_that_diverges_counts_if_needed(runs: Path, budget: float, seeds: tuple[int, ...], outcome: str):
    for seed in SEEDS:
        losses = {at: loss + noise(seed, 1) for at, loss in (CURVE | {4.0: 1.15}).items()}
        against(seed_of(runs, seed, 1.28 + noise(seed)), losses | ({budget: math.nan} if seed in seeds else {}))
    found, words = headline(runs)
    assert (found, f"diverged with {len(seeds)} seed" in words) == (outcome, True)


@pytest.mark.parametrize(("diverged_at", "outcome"), [((0.004,), "won"), ((0.001, 0.002, 0.004), "unknown")], ids=str)
def test_tuning_picks_no_setting_that_diverged(runs: Path, diverged_at: tuple[float, ...], outcome: str) -> None:
    for peak, final in ((0.001, 1.30), (0.002, 1.28), (0.004, 1.35)):
        for seed in SEEDS:
            run_set = ("rates", rate(peak) | {"seed": seed})
            name = f"rates-{peak:g}-{seed}"
            ladder = grown(runs, name, final + noise(seed), seed=seed, run_set=run_set, **rate(peak))
            loss = math.nan if peak in diverged_at else final + 0.06 + noise(seed, 1)
            against(ladder, {1.0: loss}, **rate(peak))
    found, words = headline(runs)
    assert (found, "diverged" in words) == (outcome, True)


@pytest.mark.parametrize("names", [("first", "second"), ("second", "first")], ids=str)
@pytest.mark.parametrize(("worse", "claim"), [(1.36, "takes 0.78x"), (math.nan, "the ladder diverged")], ids=str)
def test_of_ladders_of_one_seed_the_worst_counts(runs: Path, names: tuple[str, str], worse: float, claim: str) -> None:
    for name, final in zip(names, (1.28, worse), strict=True):
        against(grown(runs, name, final), CURVE)
    assert claim in headline(runs)[1]
    assert f"{names[0]} repeats seed 1" in headline(runs)[1]


@pytest.mark.parametrize("names", [("a-", "z-"), ("z-", "a-")], ids=str)
def test_a_control_that_diverged_once_is_not_hidden_by_its_repetition(runs: Path, names: tuple[str, str]) -> None:
    for seed in SEEDS:
        ladder = seed_of(runs, seed, 1.28 + noise(seed))
        against(ladder, {budget: loss + noise(seed, 1) for budget, loss in CURVE.items()})
        for prefix, final in zip(names, (math.nan, None), strict=True):
            [control] = against(ladder, {4.0: final}, runs=runs / "elsewhere")
            control.path.parent.rename(runs / f"{prefix}{control.entry.name}")
    assert "diverged with 3 seeds of 3" in headline(runs)[1]


def test_time_does_not_compare_with_work_reused_from_another_machine(runs: Path) -> None:
    ladder = FakeRun(runs, "quick", [SMALL, LAST], machine={"device": "NVIDIA H100 80GB HBM3", "num_devices": 8})
    ladder.train(0, 1.42, reused_from="elsewhere")
    ladder.machine = {}
    against(ladder.train(1, 1.28, start=1.42), CURVE)
    [verdict] = judged(runs).headlines
    assert (verdict.other_costs, "8 x NVIDIA H100" in verdict.other_costs_unknown) == ({}, True)


def test_a_ladder_that_a_cheaper_control_beats_has_lost_whichever_sizes_are_missing(runs: Path) -> None:
    for seed in SEEDS:
        against(seed_of(runs, seed, 1.40 + noise(seed)), {0.5: 1.30 + noise(seed, 1)}, "best-scratch", "1-2m")
    found, words = headline(runs)
    assert (found, "with 0.50x the FLOPs already ended below its loss" in words) == ("lost", True)


@pytest.mark.parametrize(
    ("small", "result", "interval"),
    [
        ({0.5: 1.45, 2.0: 1.34}, "Growing won", " at most {0.ratio:.2f}x that, 95% interval {0.low:.2f}x to"),
        ({0.5: 1.45, 1.0: 1.40, 2.0: 1.379}, "Growing won", " cost {0.ratio:.2f}x that, 95% interval above "),
        ({0.5: 1.382, 1.0: 1.33, 2.0: 1.28}, "Not known", ", 95% interval below "),
        ({0.5: 1.33, 1.0: 1.30, 2.0: 1.28}, "Not known", "0-800k/release of quick: not bracketed"),
    ],
    ids=["chord", "open above", "open below", "not bracketed"],
)
def test_the_price_of_a_family_has_an_interval_or_the_command_to_find_it(
    runs: Path, small: dict[float, float], result: str, interval: str
):
    """`small`: the losses of controls of the small one of two models."""
    released = (SMALL.num_steps + RELEASE.num_steps) * SMALL.num_parameters
    for seed in SEEDS:
        ladder = seed_of(runs, seed, 1.28 + noise(seed), stages=[SMALL, RELEASE, LAST])
        curves = {"0-800k": (small, SMALL.num_parameters, released), "1-2m": (CURVE, LAST.num_parameters, WORK)}
        for name, (curve, parameters, work) in curves.items():
            losses = {budget: loss + noise(seed, round(budget) + 1) for budget, loss in curve.items()}
            against(ladder, losses, "scratch-of-each-size", name, parameters, work)
    [family] = judged(runs).families
    assert family.claim.startswith(f"{result}: ")
    assert interval.format(family) in family.claim
    asked = "{kind: scratch-of-each-size, budgets: [0.25, 0.5, 1, 2]}"
    assert (asked in family.command) == (family.ratio is None) == bool(family.command)


def test_a_size_without_a_control_near_the_ladders_flops_is_no_part_of_the_opponent(runs: Path) -> None:
    ladder = grown(runs)
    against(ladder, CURVE)
    against(ladder, {0.25: 1.45}, size="0-800k", parameters=SMALL.num_parameters)
    assert "training 2.4M parameters from scratch takes" in headline(runs)[1]


def test_many_ladders_are_each_compared_with_the_best_one_on_the_same_data(runs: Path) -> None:
    for number in range(5):
        grown(runs, f"rate-{number}", 1.30 + 0.01 * number, **rate(0.001 * (number + 1)))
    assert len(judged(runs).pairs) == MOST_PAIRS
    grown(runs, "bytes", 0.7, data="beef")
    assert [{pair.first, pair.second} for pair in judged(runs).pairs] == [{"rate-0", f"rate-{n}"} for n in range(1, 5)]


def test_a_depth_that_the_ladder_lacks_decides_if_it_ends_lowest(runs: Path) -> None:
    ladder = grown(runs)
    for words, parameters, loss in (("0-800k", SMALL.num_parameters, 1.34), ("1-2m", LAST.num_parameters, 1.33)):
        against(ladder, {1.0: loss}, "best-scratch", words, parameters)
    against(ladder, {1.0: 1.20}, "best-scratch", "4-layers", 3_000_000)
    [verdict] = judged(runs).headlines
    assert verdict.opponent_side
    assert (verdict.kind, verdict.opponent_side.num_parameters) == ("best-scratch", 3_000_000)
