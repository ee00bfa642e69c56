"""The names of the runs of a set."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from growctl.runs_dir import RUN_NAME
from growctl.sweep.names import run_names, short_keys

VALUES = st.one_of(
    st.integers(), st.floats(allow_nan=False), st.text(max_size=60), st.booleans(), st.none(), st.lists(st.integers())
)


@pytest.mark.parametrize(
    ("point", "name"),
    [
        ({"seed": 1}, "quick-seed-1"),
        ({"learning_rate.peak": 0.002, "seed": 0}, "quick-peak-0.002-seed-0"),
        ({"learning_rate.peak": 1e-5}, "quick-peak-1e-05"),
        ({"learning_rate.peak": 0.1 + 0.2}, "quick-peak-0.3"),
        ({"training.ladder_flops": 1e20}, "quick-ladder_flops-1e20"),
        ({"training.ladder_tokens": "1.5B"}, "quick-ladder_tokens-1.5B"),
        ({"optimizer.betas": [0.9, 0.95]}, "quick-betas-0.9-0.95"),
        ({"data": "wikitext"}, "quick-data-wikitext"),
        ({"data.source": "/texts/of/ours.jsonl"}, "quick-source-texts-of-ours.jsonl"),
        ({"releases": None}, "quick-releases-null"),
    ],
)
def test_a_name_says_what_sets_the_run_apart(point, name):
    assert run_names("quick", [point]) == [name]


@pytest.mark.parametrize(
    ("keys", "short"),
    [
        (["learning_rate.peak", "seed"], ["peak", "seed"]),
        (["stages.0.train_tokens"], ["train_tokens"]),
        (["stages.0.train_tokens", "stages.1.train_tokens"], ["stages.0.train_tokens", "stages.1.train_tokens"]),
        (["optimizer.betas.0", "growth.ramp"], ["betas.0", "ramp"]),
        (["data", "other.data"], ["data", "other.data"]),
    ],
)
def test_keys_are_as_short_as_they_can_be_told_apart(keys, short):
    assert list(short_keys(keys).values()) == short


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
