"""Runs that differ in nothing but their seed: how they are grouped, and what is computed over them."""

import math
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from growctl.analysis.runs import ControlToCome, RunReport
from growctl.seeds.grouping import Grouping, replicates, seeds_text
from growctl.seeds.headline import ONE_SEED, headline
from growctl.seeds.over_seeds import section
from growctl.seeds.replicates import SeedComparison, SeedFigures, seed_figures
from growctl.seeds.statistics import mean_interval
from growctl.text.section import Paragraph, Section, Table
from tests.growctl.report.invented_reports import run_report, seed_runs

LOSSES = st.floats(1.0, 4.0)
CURVE = {0.5: 2.2, 1.0: 2.0, 2.0: 1.8}
"""Losses of controls by budget: a ladder of loss 1.9 saves a factor of sqrt(2)."""


def only(runs: list[RunReport]) -> SeedFigures:
    [group] = replicates(runs)
    return seed_figures(group)


def comparison(runs: list[RunReport]) -> SeedComparison:
    [found] = only(runs).comparisons
    return found


def said(found: Section | None) -> str:
    assert found
    return " ".join(part.text for part in found.parts if isinstance(part, Paragraph))


def several(losses: dict[int, float | None], curve: dict[float, float | None] | None = None) -> list[RunReport]:
    """The runs of some seeds, ladders with these losses, controls shifted as their ladder is from 1.9."""
    runs = []
    for seed, loss in losses.items():
        shift = loss - 1.9 if loss is not None and math.isfinite(loss) else 0.0
        points = {budget: None if its is None else its + shift for budget, its in (curve or CURVE).items()}
        runs += seed_runs(seed, loss, points)
    return runs


def test_equal_seeds_give_intervals_without_width_and_the_saving_of_each() -> None:
    found = comparison(several(dict.fromkeys(range(4), 1.9)))
    assert found.seeds == (0, 1, 2, 3)
    assert found.at_equal_loss
    assert found.at_equal_loss.interval
    assert found.at_equal_flops
    assert found.at_equal_flops.difference.interval
    for value in (found.at_equal_loss.saving, *found.at_equal_loss.by_seed.values()):
        assert value == pytest.approx(math.sqrt(2))
    interval = found.at_equal_loss.interval
    assert (interval.low, interval.high) == pytest.approx((math.sqrt(2), math.sqrt(2)))
    apart = found.at_equal_flops.difference
    assert apart.interval
    assert (apart.mean, apart.interval.low, apart.interval.high) == pytest.approx((-0.1, -0.1, -0.1))
    assert found.at_equal_flops.control == "tokenformer-scratch-1x"


@settings(max_examples=20)
@given(losses=st.lists(LOSSES, min_size=2, max_size=4), control=st.lists(LOSSES, min_size=4, max_size=4), shift=LOSSES)
def test_a_constant_shift_of_all_losses_leaves_differences_and_savings(
    losses: list[float], control: list[float], shift: float
) -> None:
    def runs(by: float) -> list[RunReport]:
        pairs = enumerate(zip(losses, control, strict=False))
        return [
            run
            for seed, (loss, its) in pairs
            for run in seed_runs(seed, loss + by, {0.5: its + by + 0.3, 1.0: its + by, 2.0: its + by - 0.4})
        ]

    before, after = comparison(runs(0.0)), comparison(runs(shift))
    assert (before.at_equal_flops is None) == (after.at_equal_flops is None)
    if before.at_equal_flops and after.at_equal_flops:
        assert after.at_equal_flops.difference.mean == pytest.approx(before.at_equal_flops.difference.mean, abs=1e-9)
    assert before.at_equal_loss
    assert after.at_equal_loss
    if before.at_equal_loss.saving and after.at_equal_loss.saving:  # rounding may move a loss off a curve's end
        assert after.at_equal_loss.saving == pytest.approx(before.at_equal_loss.saving, rel=1e-6)


@settings(max_examples=20)
@given(order=st.randoms(use_true_random=False), losses=st.lists(st.none() | LOSSES, min_size=1, max_size=4))
def test_the_order_of_the_runs_changes_nothing(order: Random, losses: list[float | None]) -> None:
    runs = [*several(dict(enumerate(losses))), run_report("other", 1.7, seed=5, sizes=(1000, 3000))]
    shuffled = order.sample(runs, len(runs))
    assert [seed_figures(g) for g in replicates(shuffled)] == [seed_figures(g) for g in replicates(runs)]


def test_grouping_by_seed_equals_a_report_on_each_seed_alone() -> None:
    runs = several({0: 1.9, 1: 2.0, 2: None})
    by_seed = Grouping(("seed",), {f"q-seed-{seed}": {"seed": seed} for seed in range(3)})
    together = [seed_figures(group) for group in replicates(runs, by_seed)]
    assert together == [only([run for run in runs if run.seed == seed]) for seed in range(3)]


@pytest.mark.parametrize(
    "other",
    [
        {"dataset_fingerprint": "beef"},
        {"conditions": {"seed": 1, "model.family": "tokenformer", "learning_rate.peak": 0.1}},
        {"overrides": {"launch.zero_stage": 2}},
    ],
)
def test_runs_that_differ_in_more_than_the_seed_are_not_averaged(other: dict[str, Any]) -> None:
    first, second = run_report("a-seed-0", 1.9), run_report("a-seed-1", 2.0, seed=1)
    assert [group.name for group in replicates([first, second])] == ["a"]
    assert len(replicates([first, replace(second, **other)])) == 2
    shorter = replace(second.stages[-1], planned_steps=50)
    assert len(replicates([first, replace(second, stages=(second.stages[0], shorter))])) == 2
    assert (
        len(
            replicates(
                [replace(first, precisions=frozenset({"fp32"})), replace(second, precisions=frozenset({"bf16"}))]
            )
        )
        == 2
    )


def test_runs_started_one_by_one_belong_to_the_seeds_of_their_schedule() -> None:
    in_set = run_report("q-seed-0", 1.9, group="q", overrides={"seed": 0})
    alone = run_report("mine", 2.0, seed=1)
    [group] = replicates([in_set, alone])
    assert group.seeds == (0, 1)
    assert group.members[1].ladder is alone


def test_hashes_of_one_dataset_that_only_some_runs_record_keep_no_seeds_apart() -> None:
    runs = [run_report("q-seed-0", 1.9), run_report("q-seed-1", 2.0, seed=1, conditions={"data.tokenizer": "beef"})]
    [group] = replicates(runs)
    assert group.seeds == (0, 1)


def test_a_repeated_seed_counts_once_and_is_named() -> None:
    found = only([run_report("a", None), run_report("b", 1.9), run_report("c", 2.0)])
    assert [result.run for result in found.arms[0].results] == ["b"]
    assert found.repeated == (
        "a repeats seed 0, so that only b counts.",
        "c repeats seed 0, so that only b counts.",
    )
    assert headline(found).cautions == found.repeated


def test_seeds_that_diverged_or_are_unfinished_are_named_and_do_not_count() -> None:
    runs = several({0: 1.9, 1: 1.9, 2: math.nan, 3: None, 4: 1.9})
    runs = [run for run in runs if run.name != "q-seed-4-control-tokenformer-scratch-2x"]
    waiting = ControlToCome("q-seed-4-control-tokenformer-scratch-2x", "tokenformer-scratch", 2000, "running")
    runs = [replace(run, controls_to_come=(waiting,)) if run.name == "q-seed-4" else run for run in runs]
    found = only(runs)
    [against] = found.comparisons
    assert against.seeds == (0, 1)
    assert against.at_equal_flops
    assert against.at_equal_flops.difference.seeds == (0, 1, 4)
    assert [result.why for result in found.arms[0].results] == [None, None, "diverged", "not finished", None]
    text = said(section([found]))
    assert "Seed 2 does not count in ladder (diverged)." in text
    assert "Seed 3 does not count in ladder (not finished)." in text
    assert "Seed 4 does not count in tokenformer-scratch-2x (running)." in text
    assert "(seeds 0, 1: 1.41x, 1.41x;" in text


def test_one_seed_has_no_interval_and_no_section_but_a_caution_below_the_result() -> None:
    found = only(several({7: 1.9}))
    [against] = found.comparisons
    assert found.arms[0].interval is None
    assert against.at_equal_loss
    assert against.at_equal_loss.saving == pytest.approx(math.sqrt(2))
    assert against.at_equal_loss.interval is None
    assert section([found]) is None
    assert ONE_SEED in headline(found).cautions


def test_many_seeds_have_an_interval_no_narrower_than_their_t_interval() -> None:
    losses = {seed: 1.9 + 0.05 * math.sin(7 * seed) for seed in range(8)}
    found = comparison([run for seed, loss in losses.items() for run in seed_runs(seed, loss, {**CURVE})]).at_equal_loss
    assert found
    assert found.interval
    spread = mean_interval([math.log(value) for value in found.by_seed.values() if value])
    assert spread
    assert found.interval.low <= math.exp(spread.low)
    assert found.interval.high >= math.exp(spread.high)


def test_two_seeds_have_an_honestly_wide_interval() -> None:
    runs = seed_runs(0, 1.9, dict(CURVE)) + seed_runs(1, 1.95, dict(CURVE))
    found = comparison(runs)
    assert found.at_equal_loss
    assert found.at_equal_loss.interval
    low, high = sorted(value for value in found.at_equal_loss.by_seed.values() if value)
    assert found.at_equal_loss.interval.low < low / 2
    assert found.at_equal_loss.interval.high > high * 2
    assert found.at_equal_loss.within_noise
    assert "within the noise between seeds" in said(section([only(runs)]))


def test_a_clear_difference_is_beyond_the_noise_and_each_seed_is_in_the_table() -> None:
    runs = several({0: 1.9, 1: 1.91, 2: 1.92})
    shown = section([only(runs)])
    assert "beyond the noise between seeds" in said(shown)
    assert shown
    [table] = [part for part in shown.parts if isinstance(part, Table)]
    ladder = table.groups[0].rows[0]
    assert [cell.text for cell in ladder[2:]] == ["1.9100", "1.8852 to 1.9348", "1.9000", "1.9100", "1.9200"]


def test_a_control_that_few_seeds_have_leaves_no_seed_out() -> None:
    runs = several(dict.fromkeys(range(3), 1.9))
    extra = "q-seed-0-control-tokenformer-scratch-4x"
    more = run_report(extra, 1.5, sizes=(2000,), budget=4.0, kind="tokenformer-scratch", of="q-seed-0")
    [found] = only([*runs, more]).comparisons
    assert found.seeds == (0, 1, 2)
    assert found.left_out == ("tokenformer-scratch-4x",)


def test_the_best_size_is_unknown_while_a_size_has_no_control() -> None:
    runs = []
    for seed in (0, 1):
        runs += seed_runs(seed, 1.9, {0.5: 2.2, 1.0: 2.0}, kind="best-scratch")
    found = comparison(runs)
    assert found.missing_sizes == (1000,)
    assert (found.at_equal_loss, found.at_equal_flops) == (None, None)


def test_a_control_of_another_seed_does_not_count() -> None:
    runs = several({0: 1.9})
    runs[2] = replace(runs[2], conditions=runs[2].conditions | {"seed": 5}, seed=5)
    found = only(runs)
    [why] = [arm.results[0].why for arm in found.arms if arm.name == "tokenformer-scratch-1x"]
    assert why == "it differs from the ladder in seed (5, the ladder 0)"


def test_many_seeds_are_named_as_a_range() -> None:
    assert [seeds_text(seeds) for seeds in ([3], [0, 2], range(5))] == ["seed 3", "seeds 0, 2", "seeds 0 to 4"]
