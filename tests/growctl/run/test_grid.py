"""Which points hydra's sweep syntax gives, what is rejected, and the names of the runs."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from growctl.run import sets
from growctl.run.sets import SweepError, grid, run_names
from growctl.runs_dir import RUN_NAME

VALUES = st.one_of(
    st.integers(), st.floats(allow_nan=False), st.text(max_size=60), st.booleans(), st.none(), st.lists(st.integers())
)


def test_every_combination_is_one_point_and_the_last_key_changes_fastest():
    points = grid(["learning_rate.peak=2e-3,4e-3", "training.batch_size=8"], "0,1")
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
    ],
)
def test_all_of_hydras_lists_are_read_by_hydra(override, listed):
    assert [value for point in grid([override]) for value in point.values.values()] == listed


@pytest.mark.parametrize(
    ("seeds", "expected"), [("3", [3]), ("range(0,3)", [0, 1, 2]), (" 1, 2 ", [1, 2]), ("4294967295,7", [2**32 - 1, 7])]
)
def test_the_seeds_given_are_the_seeds_trained(seeds, expected):
    points = grid(["training.batch_size=8"], seeds)
    assert [point.values for point in points] == [{"seed": seed} for seed in expected]
    assert [point.overrides[0] for point in points] == ["training.batch_size=8"] * len(expected)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([], "no key has several values; write learning_rate.peak=2e-3,4e-3 or seed=range(0,3), or train a single run"),
        (["seed=1", "training.batch_size=8"], "no key has several values"),
        (["seed=0,1,0"], "override 'seed=0,1,0': must give one or more values, each of them once"),
        (["learning_rate.peak=2e-3,0.002"], "each of them once"),
        (["seed=0,1", "seed=2,3"], "seed is given twice; give all its values at once"),
        (["seed=3", "--seeds=0,1"], "seed is given twice"),
        (["learning_rate.peak=interval(0,1)"], "the values cannot be listed"),
        (["name=a,b"], "name=...: the runs are named after the swept keys; name them all with --name"),
        (["seed=range(5,5)"], "must give one or more values"),
        (["seed=range(0,5)"], "this would train more than 4 runs; give fewer values"),
        (["seed=0,1", "training.batch_size=4,8,16"], "this would train more than 4 runs"),
        (["seed=range(0,100000000)"], "this would train more than 4 runs"),
    ],
)
def test_what_is_no_grid_gets_one_message(monkeypatch, overrides, message):
    monkeypatch.setattr(sets, "MOST_RUNS", 4)
    seeds = [text.removeprefix("--seeds=") for text in overrides if text.startswith("--")]
    with pytest.raises(SweepError) as error:
        grid([text for text in overrides if not text.startswith("--")], *seeds)
    assert message in str(error.value)
    assert len(grid(["seed=range(0,4)"])) == len(grid(["seed=0,1", "training.batch_size=4,8"])) == 4


@pytest.mark.parametrize(
    ("point", "name"),
    [
        ({"learning_rate.peak": 0.002, "seed": 0}, "quick-peak-0.002-seed-0"),
        ({"learning_rate.peak": 1e-5}, "quick-peak-1e-05"),
        ({"learning_rate.peak": 0.1 + 0.2}, "quick-peak-0.3"),
        ({"training.ladder_flops": 1e20}, "quick-ladder_flops-1e20"),
        ({"training.ladder_tokens": "1.5B"}, "quick-ladder_tokens-1.5B"),
        ({"optimizer.betas": [0.9, 0.95]}, "quick-betas-0.9-0.95"),
        ({"data.source": "/texts/of/ours.jsonl"}, "quick-source-texts-of-ours.jsonl"),
        ({"releases": None}, "quick-releases-null"),
        ({"stages.0.train_steps": 1, "stages.1.train_steps": 2}, "quick-stages.0.train_steps-1-stages.1.train_steps-2"),
        ({"optimizer.betas.0": 0.9, "growth.ramp": 0.1}, "quick-optimizer.betas.0-0.9-ramp-0.1"),
        ({"data": "a", "other.data": "b"}, "quick-data-a-other.data-b"),
    ],
)
def test_a_name_says_what_sets_the_run_apart_in_keys_as_short_as_they_can_be_told_apart(point, name):
    assert run_names("quick", [point]) == [name]


@settings(max_examples=50)
@given(
    st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=8, unique_by=repr), st.from_regex(RUN_NAME, fullmatch=True)
)
def test_whatever_is_swept_the_names_are_allowed_and_differ(rows, group):
    names = run_names(group, [{"model.a": first, "b": second} for first, second in rows])
    assert all(RUN_NAME.fullmatch(name) for name in names)
    assert len(set(names)) == len(rows)


@given(st.lists(st.integers(0, 10**6), min_size=2, max_size=8, unique=True))
def test_a_longer_list_keeps_the_names_of_the_runs_that_were_there(seeds):
    points = [{"seed": seed} for seed in seeds]
    assert run_names("quick", points)[:-1] == run_names("quick", points[:-1])
