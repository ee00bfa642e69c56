"""Thinned curves keep what a reader must see."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from growctl.report.thinning import LEAST, bends, thinned
from growctl.report_training.curves import LEAST_MARKS, MOST_MARKS, share_of_marks

values = st.lists(st.one_of(st.floats(-1e6, 1e6), st.sampled_from([math.nan, math.inf, 0.0])), max_size=300)


def test_only_the_ends_and_the_bends_of_a_straight_curve_stay() -> None:
    kept = bends([0.0, 1.0, 2.0, 2.0, 2.0, 2.0, 1.0, 0.0])
    assert [place for place, value in enumerate(kept) if math.isfinite(value)] == [0, 2, 5, 7]
    assert bends([]) == []


@given(values=values, most=st.integers(LEAST, 60))
def test_a_thinned_curve_keeps_ends_extremes_and_order_and_never_has_too_many_points(
    values: list[float], most: int
) -> None:
    chosen = thinned(values, most)
    finite = [place for place, value in enumerate(values) if math.isfinite(value)]
    assert len(chosen) <= most
    assert chosen == sorted(set(chosen))
    assert set(chosen) <= set(finite)
    if finite:
        drawn, all_of_them = [values[place] for place in chosen], [values[place] for place in finite]
        assert (chosen[0], chosen[-1]) == (finite[0], finite[-1])
        assert (min(drawn), max(drawn)) == (min(all_of_them), max(all_of_them))
    if len(finite) <= most:
        assert chosen == finite


@pytest.mark.parametrize("spike", [1, 50_000, 99_998])
def test_one_spike_in_a_hundred_thousand_lines_is_drawn(spike: int) -> None:
    chosen = thinned([3.0 + (place == spike) for place in range(100_000)], 300)
    assert spike in chosen
    assert len(chosen) <= 300


def test_the_marks_of_all_series_together_are_bounded_unless_there_are_very_many_series() -> None:
    assert all(number * share_of_marks(number) <= MOST_MARKS for number in range(1, MOST_MARKS // LEAST_MARKS))
    assert share_of_marks(10_000) == LEAST_MARKS
