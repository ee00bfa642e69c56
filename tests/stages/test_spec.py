"""Learning rates and ramps, step by step."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.spec import LearningRate
from stages.train import ramp_at


def rate(**changes) -> LearningRate:
    values = {"shape": "wsd", "peak": 1.0, "final": 0.0, "warmup_steps": 10, "decay_steps": 20, "total_steps": 100}
    return LearningRate(**(values | {"first_step": 0} | changes))


def test_wsd_warms_up_holds_and_decays_to_one_step_above_the_end():
    r = rate()
    assert [r.at(s) for s in (0, 4, 9)] == [0.1, 0.5, 1.0]
    assert {r.at(s) for s in range(9, 81)} == {1.0}
    assert [r.at(s) for s in (90, 99, 100)] == [0.5, 0.05, 0.0]


def test_cosine_starts_at_the_peak_and_ends_at_the_final_rate():
    r = rate(shape="cosine", final=0.1)
    assert r.at(10) == 1.0
    assert r.at(55) == pytest.approx(0.55)
    assert r.at(100) == pytest.approx(0.1)


@given(st.sampled_from(["wsd", "cosine"]), st.integers(1, 99))
def test_a_span_cut_into_stages_has_the_rates_of_one_stage(shape, cut):
    whole = rate(shape=shape)
    second = rate(shape=shape, first_step=cut)
    assert [whole.at(s) for s in range(100)] == [whole.at(s) for s in range(cut)] + [
        second.at(s) for s in range(100 - cut)
    ]


@given(st.integers(1, 50))
def test_a_ramp_is_above_zero_at_once_and_one_right_after_its_steps(ramp_steps):
    ramps = [ramp_at(step, ramp_steps) for step in range(ramp_steps + 3)]
    assert 0 < ramps[0] < 1
    assert ramps[ramp_steps - 1] < 1
    assert ramps[ramp_steps:] == [1.0, 1.0, 1.0]
    assert ramps == sorted(ramps)
