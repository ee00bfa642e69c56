"""What a hostile reader tries on the judge, each with the answer that is right."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from growctl.analysis.family import Family
from growctl.analysis.results import Results, results
from growctl.runs.find import find_runs
from tests.growctl.analysis.ladders import CURVE, LAST, RELEASE, WORK, against, grown, noise, seed_of, start
from tests.growctl.invented_runs import SMALL, FakeRun

SEEDS = (0, 1, 2)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def judged(runs: Path) -> Results:
    return results(find_runs(runs))


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
        rate: dict[str, Any] = {"learning_rate.peak": 0.002}
        seed_of(runs, seed, math.nan if seed == 2 else 1.28 + noise(seed, 1), "other", **rate)
    [pair] = judged(runs).pairs
    assert pair.verdict is not None
    assert (pair.verdict.outcome, "other diverged with 1 seed of 3" in pair.verdict.claim) == ("unknown", True)


@pytest.mark.parametrize(
    ("budget", "seeds", "outcome"),
    [(4.0, (2,), "won"), (4.0, SEEDS, "won"), (2.0, (2,), "unknown"), (2.0, SEEDS, "unknown"), (1.0, SEEDS, "unknown")],
    ids=str,
)
def test_a_control_that_diverged_at_a_budget_that_nobody_needs_leaves_the_verdict(
    runs: Path, budget: float, seeds: tuple[int, ...], outcome: str
) -> None:
    for seed in SEEDS:
        losses = {at: loss + noise(seed, 1) for at, loss in (CURVE | {4.0: 1.15}).items()}
        against(seed_of(runs, seed, 1.28 + noise(seed)), losses | ({budget: math.nan} if seed in seeds else {}))
    [verdict] = judged(runs).headlines
    assert verdict.outcome == outcome
    assert f"diverged with {len(seeds)} seed" in " ".join([verdict.claim, *verdict.cautions])


@pytest.mark.parametrize(("diverged_at", "outcome"), [((0.004,), "won"), ((0.001, 0.002, 0.004), "unknown")], ids=str)
def test_a_setting_at_which_the_opponent_diverged_is_none_that_tuning_would_pick(
    runs: Path, diverged_at: tuple[float, ...], outcome: str
) -> None:
    for peak, final in ((0.001, 1.30), (0.002, 1.28), (0.004, 1.35)):
        for seed in SEEDS:
            rate: dict[str, Any] = {"learning_rate.peak": peak}
            run_set = ("rates", rate | {"seed": seed})
            ladder = grown(runs, f"rates-{peak:g}-{seed}", final + noise(seed), seed=seed, run_set=run_set, **rate)
            loss = math.nan if peak in diverged_at else final + 0.06 + noise(seed, 1)
            against(ladder, {1.0: loss}, **rate)
    [verdict] = judged(runs).headlines
    assert verdict.outcome == outcome
    assert "diverged" in " ".join([verdict.claim, *verdict.cautions])


def test_a_ladder_without_a_finished_model_has_no_verdict(runs: Path) -> None:
    against(FakeRun(runs, "quick", [SMALL, LAST]).train(0, None), {1.0: 1.33})
    [verdict] = judged(runs).headlines
    assert (verdict.outcome, verdict.multiplier) == ("unknown", None)
    assert "quick is not finished" in verdict.claim


@pytest.mark.parametrize("names", [("first", "second"), ("second", "first")], ids=str)
@pytest.mark.parametrize(("worse", "claim"), [(1.36, "takes 0.78x"), (math.nan, "the ladder diverged")], ids=str)
def test_of_ladders_that_repeat_a_seed_the_worst_counts_whatever_its_name(
    runs: Path, names: tuple[str, str], worse: float, claim: str
) -> None:
    for name, final in zip(names, (1.28, worse), strict=True):
        against(grown(runs, name, final), CURVE)
    [verdict] = judged(runs).headlines
    assert claim in verdict.claim
    assert f"{names[0]} repeats seed 1" in " ".join(verdict.cautions)


@pytest.mark.parametrize("names", [("a-", "z-"), ("z-", "a-")], ids=str)
def test_a_control_that_diverged_once_is_not_hidden_by_its_repetition(runs: Path, names: tuple[str, str]) -> None:
    for seed in SEEDS:
        ladder = seed_of(runs, seed, 1.28 + noise(seed))
        against(ladder, {budget: loss + noise(seed, 1) for budget, loss in CURVE.items()})
        for prefix, final in zip(names, (math.nan, None), strict=True):
            [control] = against(ladder, {4.0: final}, runs=runs / "elsewhere")
            control.path.parent.rename(runs / f"{prefix}{control.entry.name}")
    [verdict] = judged(runs).headlines
    assert "diverged with 3 seeds of 3" in " ".join(verdict.cautions)


def test_compare_names_the_steps_in_which_two_ladders_differ(runs: Path) -> None:
    grown(runs, "short")
    grown(runs, "long", stages=[SMALL, replace(LAST, num_steps=1200)])
    [pair] = judged(runs).pairs
    assert [(each.key, each.a, each.b) for each in pair.differences] == [("stages.1.train_steps", 1200, 600)]


def test_time_does_not_compare_with_work_reused_from_another_machine(runs: Path) -> None:
    ladder = FakeRun(runs, "quick", [SMALL, LAST], machine={"device": "NVIDIA H100 80GB HBM3", "num_devices": 8})
    ladder.train(0, 1.42, reused_from="elsewhere")
    ladder.machine = {}
    against(ladder.train(1, 1.28, start=1.42), CURVE)
    [verdict] = judged(runs).headlines
    assert verdict.other_costs == {}
    assert "8 x NVIDIA H100" in verdict.other_costs_unknown


def test_a_ladder_that_a_cheaper_control_beats_has_lost_whichever_sizes_are_missing(runs: Path) -> None:
    for seed in SEEDS:
        against(seed_of(runs, seed, 1.40 + noise(seed)), {0.5: 1.30 + noise(seed, 1)}, "best-scratch", "1-2m")
    [verdict] = judged(runs).headlines
    assert verdict.outcome == "lost"
    assert "with 0.50x the FLOPs already ended below its loss" in verdict.claim


def family_of(runs: Path, small: dict[float, float]) -> Family:
    """A family of two finished models, of three seeds, with controls of the small one with these losses."""
    released = (SMALL.num_steps + RELEASE.num_steps) * SMALL.num_parameters
    for seed in SEEDS:
        ladder = seed_of(runs, seed, 1.28 + noise(seed), stages=[SMALL, RELEASE, LAST])
        curves = {"0-800k": (small, SMALL.num_parameters, released), "1-2m": (CURVE, LAST.num_parameters, WORK)}
        for name, (curve, parameters, work) in curves.items():
            losses = {budget: loss + noise(seed, round(budget) + 1) for budget, loss in curve.items()}
            against(ladder, losses, "scratch-of-each-size", name, parameters, work)
    [family] = judged(runs).families
    return family


def test_the_price_of_a_family_is_at_most_right_where_one_of_its_parts_is(runs: Path) -> None:
    family = family_of(runs, {0.5: 1.45, 2.0: 1.34})
    assert f"their losses cost at most {family.ratio:.2f}x that, 95% interval {family.low:.2f}x to" in family.claim


@pytest.mark.parametrize(
    ("small", "result", "interval"),
    [
        ({0.5: 1.45, 1.0: 1.40, 2.0: 1.379}, "Growing won", "above"),
        ({0.5: 1.382, 1.0: 1.33, 2.0: 1.28}, "Not known", "below"),
    ],
    ids=["won", "unknown"],
)
def test_a_family_with_an_open_interval_says_where_it_ends(
    runs: Path, small: dict[float, float], result: str, interval: str
) -> None:
    claim = family_of(runs, small).claim
    assert claim.startswith(f"{result}: ")
    assert f", 95% interval {interval} " in claim


def test_many_ladders_are_each_compared_with_the_best_one_on_the_same_data(runs: Path) -> None:
    for number in range(5):
        rate: dict[str, Any] = {"learning_rate.peak": 0.001 * (number + 1)}
        grown(runs, f"rate-{number}", 1.30 + 0.01 * number, **rate)
    grown(runs, "bytes", 0.7, data="beef")
    assert [{pair.first, pair.second} for pair in judged(runs).pairs] == [{"rate-0", f"rate-{n}"} for n in range(1, 5)]


def test_ladders_compared_keep_their_names_and_have_no_budgets(runs: Path) -> None:
    for seed in SEEDS:
        seed_of(runs, seed, 1.28 + noise(seed), "one")
        rate: dict[str, Any] = {"learning_rate.peak": 0.002}
        seed_of(runs, seed, 1.34 + noise(seed, 1), "other", **rate)
    [pair] = judged(runs).pairs
    assert pair.verdict is not None
    assert pair.verdict.claim.startswith("one won: ")
    assert pair.verdict.cautions == ()


def test_the_data_tokens_of_a_model_with_a_start_checkpoint_are_not_known(runs: Path) -> None:
    start(runs)
    [verdict] = judged(runs).headlines
    assert verdict.ladder_side
    assert verdict.opponent_side
    assert (verdict.ladder_side.train_tokens, verdict.opponent_side.train_tokens) == (None, 933_000)
