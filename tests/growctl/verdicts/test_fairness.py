"""What differs between two runs, and how much it matters for a comparison of their losses."""

from dataclasses import replace
from itertools import permutations
from typing import Any

from hypothesis import given

from growctl.ladder.conditions import comparison_conditions
from growctl.verdicts.fairness import Difference, fairness, unmeant_conditions
from tests.growctl.report.invented_pairs import CONDITIONS, FIELDS, run
from tests.growctl.schedules import BASE, parse

HASHES = {"data.tokenizer": "t", "data.train_text": "r", "data.validation_text": "v"}


def found(**fields: Any) -> dict[str, Difference]:
    """What differs between a run and one with `fields`, by name."""
    return {difference.what: difference for difference in fairness(run("a"), run("b", **fields))}


@given(FIELDS, FIELDS)
def test_comparing_b_with_a_says_the_same_as_comparing_a_with_b(a: dict[str, Any], b: dict[str, Any]) -> None:
    first, second = run("a", **a), run("b", **b)
    runs = [first, second]
    assert [each.mirrored for each in fairness(first, second, runs)] == list(fairness(second, first, runs))


@given(FIELDS)
def test_a_run_differs_in_nothing_from_one_like_it(fields: dict[str, Any]) -> None:
    assert fairness(run("a", **fields), run("b", **fields)) == ()


@given(FIELDS, FIELDS)
def test_what_excludes_a_control_is_never_called_a_difference_by_design(a: dict[str, Any], b: dict[str, Any]) -> None:
    ladder, control = run("a", **a), run("a-control", control="tokenformer-scratch", control_of="a", **b)
    excluding = {path for path, _, _ in unmeant_conditions(ladder, control)}
    differences = fairness(ladder, control)
    assert excluding == {key for each in differences if not each.by_design for key in each.keys}


def test_every_condition_of_a_schedule_has_a_topic_of_its_own() -> None:
    paths = comparison_conditions(parse(BASE))
    for path in [*paths, "start.manifest"]:
        [difference] = fairness(
            run("a", precisions=frozenset()), run("b", precisions=frozenset(), conditions={path: "other"})
        )
        assert difference.what != "other conditions", path
        assert difference.keys == (path,)


def test_two_tokenizers_decide_and_leave_bits_per_byte() -> None:
    a = run("a", conditions=HASHES)
    b = run("b", dataset_fingerprint="beef", conditions=HASHES | {"data.tokenizer": "other"})
    [difference] = fairness(a, b)
    assert (difference.what, difference.a, difference.b, difference.grade) == ("tokenizer", "t", "other", "decides")
    assert "Compare bits per byte" in difference.why


def test_datasets_of_which_no_hashes_are_recorded_decide_and_say_so() -> None:
    difference = found(dataset_fingerprint="beef" * 4)["dataset"]
    assert (difference.a, difference.b, difference.grade) == ("words (f00d)", "words (beefbeef)", "decides")
    assert "do not record" in difference.why


def test_equal_numbers_of_windows_of_two_tokenizers_are_different_shares_of_the_text() -> None:
    windows = {"evaluation.max_sequences": 10, "training.sequence_length": 64}
    a = run("a", conditions=HASHES | windows, validation_tokens=1280)
    b = run(
        "b", dataset_fingerprint="beef", conditions=HASHES | windows | {"data.tokenizer": "u"}, validation_tokens=640
    )
    share = {each.what: each for each in fairness(a, b)}["amount of validation text"]
    assert (share.a, share.b, share.grade) == ("50%", "100%", "matters")


def test_precision_counts_as_it_was_used() -> None:
    assert found(conditions={"training.precision": "bf16"}) == {}, "auto chose bf16"
    difference = found(precisions=frozenset({"fp32"}))["precision"]
    assert (difference.a, difference.b) == ("bf16", "fp32")


def test_steps_matter_less_at_equal_flops() -> None:
    stages = run("b").stages
    fewer = (*stages[:-1], replace(stages[-1], num_steps=50))
    assert found(stages=fewer)["steps"].grade == "minor"
    assert found(stages=(replace(run("b", flops=2e12).stages[-1], num_steps=50),))["steps"].grade == "matters"


def test_tuning_counts_the_settings_of_a_sweep_and_not_its_seeds() -> None:
    points = [{"learning_rate.peak": peak, "seed": seed} for peak in (1e-3, 2e-3, 4e-3) for seed in (0, 1)]
    swept = [run(f"s-{number}", group="s", overrides=point) for number, point in enumerate(points)]
    seeded = [run(f"q-{seed}", group="q", overrides={"seed": seed}) for seed in (0, 1)]
    runs = [*swept, *seeded]
    [tuning] = fairness(swept[0], seeded[0], runs)
    assert (tuning.a, tuning.b) == ("3 settings tried (learning_rate.peak)", "1 setting tried")
    assert fairness(seeded[0], seeded[1], runs) == ()


def test_settings_of_one_topic_stand_together_with_their_values() -> None:
    rate = found(conditions={"learning_rate.peak": 2e-3, "learning_rate.shape": "cosine"})["learning rate"]
    assert (rate.a, rate.b) == ("peak 0.001, shape wsd", "peak 0.002, shape cosine")
    assert rate.keys == ("learning_rate.peak", "learning_rate.shape")


def test_what_may_matter_most_comes_first() -> None:
    larger = tuple(replace(stage, num_parameters=2000) for stage in run("b").stages)
    differences = found(stages=larger, decays=False, conditions={"seed": 1, "learning_rate.peak": 1})
    assert [each.grade for each in differences.values()] == ["decides", "matters", "matters", "minor"]


def test_a_control_differs_by_design_in_what_its_kind_is_for() -> None:
    ladder = run("a")
    control = run(
        "a-control",
        control="transformer-scratch",
        control_of="a",
        conditions={"model.family": "transformer", "seed": 1},
    )
    for a, b in permutations((ladder, control)):
        assert {each.what: each.by_design for each in fairness(a, b)} == {"model family": True, "seed": False}
    assert not any(each.by_design for each in fairness(run("another"), control))


def test_conditions_of_invented_runs_are_those_of_schedules() -> None:
    assert CONDITIONS.keys() <= comparison_conditions(parse(BASE)).keys()
