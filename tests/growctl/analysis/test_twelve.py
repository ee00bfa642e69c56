"""The twelve ways in which a report lied, each with the verdict that is right.

Simulations (benchmarks/judge_coverage.py) judge how often intervals and verdicts hold.
"""

import json
import math
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from growctl.ladder.controls import plan_controls
from growctl.ladder.stage_plans import plan_run
from tests.growctl.analysis import ladders, twelve
from tests.growctl.runs import run_here
from tests.growctl.schedules import changed, parse

pytestmark = pytest.mark.slow

WON, LOST, WITHIN_NOISE, UNKNOWN = "won", "lost", "within the noise", "unknown"


class Verdict(NamedTuple):
    """What a report concludes about a ladder."""

    outcome: str
    ratio: float | None
    """What its controls need for its loss / what it has cost."""
    seeds: tuple[int, ...]
    text: str
    """The sentence, and the cautions below it."""


def report(runs: Path) -> Any:
    return json.loads(run_here("report", "--runs-dir", runs, "--json")[0])


def verdict_of(runs: Path, name: str = "quick") -> Verdict:
    """The verdict on the ladder `name`, or on the seeds that it stands for."""
    results = report(runs)["results"]
    names = {run: each["name"] for each in results["ladders"] for run in each["arms"][0]["runs"].values()}
    [verdict] = [each for each in results["headlines"] if each["ladder"] == names.get(name, name)]
    text = " ".join([verdict["claim"], *verdict["cautions"]])
    return Verdict(verdict["outcome"], (verdict["multiplier"] or {}).get("estimate"), tuple(verdict["seeds"]), text)


def ratios_of_models(runs: Path, name: str = "quick") -> dict[str, float | None]:
    """The same ratio for each finished model of a ladder, against its own size from scratch."""
    [family] = [each for each in report(runs)["results"]["families"] if each["ladder"] == name]
    return {
        model["ladder"].partition(" of ")[0]: (model["multiplier"] or {}).get("estimate") for model in family["models"]
    }


def best_of_sweep(runs: Path, name: str) -> tuple[int, Any]:
    """The number of points of a sweep, and the swept values of the best; (0, None) without a sweep."""
    for sweep in report(runs)["results"]["sweeps"]:
        if sweep["name"] == name:
            [values] = [point["values"] for point in sweep["points"] if point["name"] == sweep["best"]]
            return len(sweep["points"]), values
    return 0, None


def ladders_compared(runs: Path, first: str, second: str) -> dict[str, Any]:
    """What the ladder `second` needs for the loss of `first` / what that has cost, with the interval."""
    [pair] = [each for each in report(runs)["results"]["pairs"] if (each["first"], each["second"]) == (first, second)]
    return dict(pair["verdict"]["multiplier"])


def compared(runs: Path, a: str, b: str) -> tuple[str | None, set[str]]:
    """The outcome for the first run, and the keys of the schedule in which `compare` says that they differ."""
    pair = json.loads(run_here("compare", a, b, "--runs-dir", runs, "--json")[0])
    return pair["verdict"] and pair["verdict"]["outcome"], {each["key"] for each in pair["differences"]}


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.mark.parametrize(("final", "outcome"), [(1.28, WON), (1.38, LOST)])
def test_three_seeds_beyond_the_noise_have_won_or_lost(runs: Path, final: float, outcome: str) -> None:
    ladders.seeds(runs, [final + ladders.noise(seed) for seed in range(3)], ladders.CURVE)
    found = verdict_of(runs)
    assert (found.outcome, found.seeds) == (outcome, (0, 1, 2))


@pytest.mark.parametrize(("second", "ladder"), [(1.44, 1.27), (1.20, 1.22)], ids=["worse", "better"])
def test_of_two_controls_with_the_same_label_the_best_counts(runs: Path, second: float, ladder: float) -> None:
    twelve.second_control(runs, second, ladder)
    assert verdict_of(runs).outcome == LOST


def test_rollbacks_after_its_own_spikes_are_costs_of_the_ladder(runs: Path) -> None:
    twelve.rolled_back(runs)
    found = verdict_of(runs)
    assert found.outcome == LOST
    assert found.ratio == pytest.approx(1.17 / (1 + twelve.ROLLBACKS), rel=0.02)


@pytest.mark.parametrize("recipe", twelve.RECIPES)
def test_another_recipe_is_no_further_seed(runs: Path, recipe: str) -> None:
    twelve.recipes(runs, recipe)
    assert [verdict_of(runs, f"quick-seed-{seed}").seeds for seed in range(3)] == [(0, 1), (0, 1), (2,)]


@pytest.mark.parametrize("recipe", twelve.RECIPES)
def test_compare_names_every_key_in_which_two_recipes_differ(runs: Path, recipe: str) -> None:
    twelve.recipes(runs, recipe)
    assert compared(runs, "quick-seed-0", "quick-seed-2")[1] >= set(twelve.RECIPES[recipe])


def test_a_sweep_over_a_key_of_a_stage_has_its_points_and_its_best_one(runs: Path) -> None:
    twelve.swept_ramp(runs)
    assert best_of_sweep(runs, "ramps") == (3, {"stages.1.ramp_steps": 6})


def test_a_budget_that_one_seed_lacks_drops_no_seed(runs: Path) -> None:
    for removed in (False, True):
        twelve.needless_budget(runs / str(removed), removed)
        found = verdict_of(runs / str(removed))
        assert (found.outcome, found.seeds) == (WITHIN_NOISE, (0, 1, 2)), f"removed: {removed}"


def test_between_budgets_the_cost_of_a_loss_follows_a_power_law(runs: Path) -> None:
    twelve.documented(runs)
    assert verdict_of(runs).ratio == pytest.approx(1.36, abs=0.02)


def test_each_size_from_scratch_counts_for_a_ladder_with_a_start_checkpoint(runs: Path) -> None:
    twelve.each_size_with_start(runs)
    assert ratios_of_models(runs) == pytest.approx({"small/release": 1.5, "large": 1.5}, rel=0.02)


def test_each_size_from_scratch_has_the_flops_of_the_start_checkpoint_too() -> None:
    changes = {"start": twelve.start_block(twelve.START_FLOPS), "releases": "all"}
    ladder = parse(changed(changes | {"controls": [{"kind": "scratch-of-each-size"}]}))
    small, release, large = (plan.flops.total for plan in plan_run(ladder))
    planned = [sum(plan.flops.total for plan in plan_run(control.schedule)) for control in plan_controls(ladder)]
    assert planned == pytest.approx([twelve.START_FLOPS + small + own for own in (release, large)], rel=0.02)


def test_a_control_that_was_trained_for_another_ladder_does_not_count(runs: Path) -> None:
    twelve.controls_of_another_ladder(runs)
    assert verdict_of(runs).outcome == UNKNOWN


@pytest.mark.parametrize("kind", ["single-jump", "official-growth"])
def test_a_control_that_grows_counts_only_with_the_stages_of_its_kind(runs: Path, kind: str) -> None:
    twelve.other_stages(runs, kind)
    assert verdict_of(runs).outcome == UNKNOWN


@pytest.mark.parametrize("case", [twelve.quarter_of_the_flops, twelve.a_size_at_one_budget])
def test_a_comparison_with_a_quarter_of_the_flops_says_so(runs: Path, case: Any) -> None:
    case(runs)
    found = verdict_of(runs)
    assert found.outcome == UNKNOWN or "0.25x" in found.text


@pytest.mark.parametrize(
    ("which", "count"), [({"ladders": (2, 3, 4, 5)}, 4), ({"controls": (2,), "num_seeds": 3}, 1)], ids=str
)
def test_a_seed_that_diverged_on_either_side_leaves_nothing_won(runs: Path, which: Any, count: int) -> None:
    twelve.diverged(runs, **which)
    found = verdict_of(runs)
    assert found.outcome == UNKNOWN
    assert "diverged" in found.text
    assert re.search(rf"\b{count}\b", found.text)


def test_two_ladders_at_equal_loss_have_an_interval(runs: Path) -> None:
    twelve.two_ladders(runs)
    multiplier = ladders_compared(runs, "other", "one")
    assert multiplier["low"] < multiplier["estimate"] < multiplier["high"]


@pytest.mark.parametrize("start_flops", [None, twelve.START_FLOPS])
def test_a_ledger_that_lost_rows_contradicts_the_cost_of_the_final_checkpoint(
    runs: Path, start_flops: float | None
) -> None:
    twelve.lost_rows(runs, start_flops)
    found = verdict_of(runs)
    assert found.outcome == UNKNOWN
    assert "ledger" in found.text


MEASURES = [{"precision": "bf16"}, {"num_tokens": 2500}]


@pytest.mark.parametrize("evaluates", MEASURES, ids=str)
def test_losses_in_another_precision_or_on_other_tokens_are_not_compared(runs: Path, evaluates: Any) -> None:
    twelve.measured_otherwise(runs, evaluates)
    assert verdict_of(runs).outcome == UNKNOWN


@pytest.mark.parametrize("evaluates", MEASURES, ids=str)
def test_compare_names_no_better_run_of_two_that_were_measured_otherwise(runs: Path, evaluates: Any) -> None:
    twelve.measured_otherwise(runs, evaluates)
    assert compared(runs, "quick-seed-0", f"quick-seed-0-control-{twelve.SCRATCH}")[0] is None


def test_a_start_checkpoint_of_unknown_cost_is_a_caveat_of_its_control(runs: Path) -> None:
    twelve.start_of_unknown_cost(runs)
    assert "without its start checkpoint" in verdict_of(runs).text


def test_a_ledger_of_another_version_is_one_message(runs: Path) -> None:
    twelve.another_version(runs)
    out, err = run_here("report", "--runs-dir", runs, expect=2)
    assert out == ""
    ledger = f"{runs}/quick-control-{twelve.SCRATCH}/ledger.db"
    assert f"{ledger}: the ledger is broken: its tables are not those of a ledger of this version" in err
    assert err.count("\n") == 1


def test_a_ladder_without_a_finished_model_has_no_verdict(runs: Path) -> None:
    twelve.no_finished_model(runs)
    found = verdict_of(runs)
    assert (found.outcome, found.ratio) == (UNKNOWN, None)
    assert "quick is not finished" in found.text


def test_controls_without_their_ladder_name_it_on_the_first_screen(runs: Path) -> None:
    twelve.no_ladder(runs)
    out, _ = run_here("report", "--runs-dir", runs)
    assert "ladder quick" in out.partition("Stages")[0]


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_a_divergence(runs: Path, loss: float) -> None:
    ladders.seeds(runs, [loss] * 3, ladders.CURVE)
    found = verdict_of(runs)
    assert (found.outcome, found.ratio) == (UNKNOWN, None)
    assert "diverged" in found.text


def test_every_evaluation_of_a_long_run_is_read(runs: Path) -> None:
    """With 100,000 rows too, which take too long to write here."""
    twelve.many_rows(runs, 2000)
    assert verdict_of(runs).ratio == pytest.approx(1.6, abs=0.1)
