"""Which points hydra's sweep syntax gives, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from growctl.run.grid import MOST_RUNS, SweepError, grid, seed_grid


def values(*overrides: str) -> list[dict]:
    return [point.values for point in grid(overrides)]


def test_every_combination_is_one_point_and_the_last_key_changes_fastest():
    points = grid(["learning_rate.peak=2e-3,4e-3", "training.batch_size=8", "seed=0,1"])
    assert [point.values for point in points] == [
        {"learning_rate.peak": rate, "seed": seed} for rate in (0.002, 0.004) for seed in (0, 1)
    ]
    assert points[1].overrides == ("learning_rate.peak=0.002", "training.batch_size=8", "seed=1")


@pytest.mark.parametrize(
    ("override", "listed"),
    [
        ("seed=range(0,3)", [0, 1, 2]),
        ("seed=choice(4,7)", [4, 7]),
        ("seed=sort(3,1,2)", [1, 2, 3]),
        ("++seed=1,2", [1, 2]),
        ("optimizer.betas=[0.9,0.95],[0.9,0.99]", [[0.9, 0.95], [0.9, 0.99]]),
        ("stages.0.train_tokens=200k,1M", ["200k", "1M"]),
        ("data.source='a,b',c", ["a,b", "c"]),
        ("releases=true,null", [True, None]),
        ("data=wikitext,openwebtext", ["wikitext", "openwebtext"]),
    ],
)
def test_all_of_hydras_lists_are_read_by_hydra(override, listed):
    assert [value for point in values(override) for value in point.values()] == listed


@given(st.lists(st.integers(0, 2**32 - 1), min_size=2, max_size=5, unique=True))
def test_the_seeds_given_are_the_seeds_trained(seeds):
    text = ",".join(map(str, seeds))
    points = seed_grid(text, ["training.batch_size=8"])
    assert [point.values for point in points] == [{"seed": seed} for seed in seeds]
    assert points[0].overrides == ("training.batch_size=8", f"seed={seeds[0]}")


@pytest.mark.parametrize(("seeds", "expected"), [("3", [3]), ("range(0,3)", [0, 1, 2]), (" 1, 2 ", [1, 2])])
def test_seeds_may_be_one_or_a_range(seeds, expected):
    assert [point.values["seed"] for point in seed_grid(seeds, [])] == expected


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([], "no key has several values; write learning_rate.peak=2e-3,4e-3 or seed=range(0,3), or train a single run"),
        (["seed=1", "training.batch_size=8"], "no key has several values"),
        (["seed=0,1,0"], "override 'seed=0,1,0': seed = 0 is given twice"),
        (["learning_rate.peak=2e-3,0.002"], "override 'learning_rate.peak=2e-3,0.002': learning_rate.peak = 0.002 is "),
        (["seed=0,1", "seed=2,3"], "override 'seed=2,3': seed is swept twice; give all its values at once"),
        (["learning_rate.peak=interval(0,1)"], "interval() names no values to train; list them, or use range(START,"),
        (["data=glob(*)"], "override 'data=glob(*)': glob() is not supported; list the values"),
        (["name=a,b"], "override 'name=a,b': the runs are named after the swept keys; name them all with --name"),
        (["seed=range(5,5)"], "override 'seed=range(5,5)': gives no values"),
        (
            ["seed=range(0,101)"],
            "this would train 101 runs; give fewer values, or train more than 100 with growctl swe",
        ),
        (["seed=range(0,100000000)"], "more than 10,000 runs are too many for one sweep; give fewer values"),
    ],
)
def test_what_is_no_grid_gets_one_message(overrides, message):
    with pytest.raises(SweepError) as error:
        grid(overrides)
    assert message in str(error.value)


def test_more_than_100_runs_are_trained_if_asked_for():
    assert len(grid([f"seed=range(0,{MOST_RUNS})"])) == MOST_RUNS
    assert len(grid([f"seed=range(0,{MOST_RUNS + 1})"], large=True)) == MOST_RUNS + 1


@pytest.mark.parametrize(
    ("seeds", "overrides", "message"),
    [
        ("0,0", [], "--seeds '0,0': seed = 0 is given twice"),
        ("-1,2", [], "--seeds '-1,2': -1 is not a seed; a seed is a whole number from 0 on, as in 0,1,2"),
        ("1.5", [], "--seeds '1.5': 1.5 is not a seed"),
        ("true,1", [], "--seeds 'true,1': true is not a seed"),
        ("[0,1]", [], "--seeds '[0,1]': [0, 1] is not a seed"),
        ("", [], "--seeds '': '' is not a seed"),
        ("0,,1", [], "--seeds '0,,1': must be whole numbers from 0 on, such as 0,1,2"),
        ("interval(0,1)", [], "--seeds 'interval(0,1)': interval() names no values to train"),
        ("0,1", ["seed=3"], "--seeds 0,1 and the override 'seed=3' contradict each other; give one of them"),
        ("0,1", ["++seed=3"], "--seeds 0,1 and the override '++seed=3' contradict each other; give one of them"),
        ("range(0,101)", [], "this would train 101 runs"),
    ],
)
def test_what_are_no_seeds_gets_one_message(seeds, overrides, message):
    with pytest.raises(SweepError) as error:
        seed_grid(seeds, overrides)
    assert message in str(error.value)
