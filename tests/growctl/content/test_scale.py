"""Axes: every value has a place on them, and ticks are few, round and told apart."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from growctl.content.chart import Axis
from growctl.content.scale import Scale, is_drawable, tick_labels

ANY = st.floats(-1e20, 1e20).filter(lambda value: value == 0 or abs(value) > 1e-20)
POSITIVE = st.floats(1e-12, 1e25)


@given(st.lists(ANY, min_size=1, max_size=8))
def test_every_value_lies_inside_a_linear_axis(values: list[float]) -> None:
    scale = Scale.over(values, is_log=False)
    assert all(-1e-9 <= scale.place(value) <= 1 + 1e-9 for value in values)


@given(st.lists(POSITIVE, min_size=1, max_size=8), st.integers(3, 8))
def test_ticks_of_a_logarithmic_axis_are_few_and_have_labels_of_their_own(values: list[float], most: int) -> None:
    scale = Scale.over(values, is_log=True)
    assert all(0 < scale.place(value) < 1 for value in values)
    ticks = scale.ticks(most)
    assert 1 <= len(ticks) <= most + 1
    assert all(scale.low <= tick <= scale.high for tick in ticks)
    assert ticks == sorted(set(ticks))


@pytest.mark.parametrize(
    ("values", "is_log", "labels"),
    [
        ((14, 55), True, ["15", "20", "30", "40", "50"]),
        ((3.52, 3.61), True, ["3.52", "3.54", "3.56", "3.58", "3.6"]),
        ((1e12, 9e13), True, ["1e12", "2e12", "5e12", "1e13", "2e13", "5e13", "1e14"]),
        ((1e3, 1e21), True, ["1e3", "1e6", "1e9", "1e12", "1e15", "1e18", "1e21"]),
        ((0, 1.2e6), False, ["0", "200k", "400k", "600k", "800k", "1M", "1.2M"]),
        ((7.0, 7.0), False, ["4", "5", "6", "7", "8", "9", "10"]),
        ((0, 0), False, ["0", "0.2", "0.4", "0.6", "0.8", "1"]),
        ((-0.2, 0.4), False, ["-0.2", "-0.1", "0", "0.1", "0.2", "0.3", "0.4"]),
        ((2e-5, 8e-5), False, ["0", "2e-5", "4e-5", "6e-5", "8e-5"]),
    ],
)
def test_ticks_are_round(values: tuple[float, float], is_log: bool, labels: list[str]) -> None:
    assert tick_labels(Scale.over(values, is_log).ticks(7)) == labels


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
def test_what_is_not_a_number_is_not_drawn(value: float | None) -> None:
    assert not is_drawable(value, Axis("x", "x"))


def test_zero_and_less_have_no_place_on_a_logarithmic_axis() -> None:
    assert not is_drawable(0.0, Axis("x", "x", is_log=True))
    assert not is_drawable(-1.0, Axis("x", "x", is_log=True))
    assert is_drawable(-1.0, Axis("x", "x"))
