"""The simulation behind docs/judge.md."""

import numpy as np
import pytest

from benchmarks.judge_coverage import BUDGETS, LAWS, NOISES, coverage_row, false_verdicts, losses_at, old_interval
from tools.judge import CoverageRow, VerdictRow

LAW = {"exponent 0.9": LAWS["exponent 0.9"]}


@pytest.mark.parametrize("name", LAWS)
def test_every_law_passes_through_the_documented_losses(name):
    assert losses_at(LAWS[name], [0.5, 2.0]) == pytest.approx([3.3688, 2.6661])


@pytest.mark.parametrize("noise", NOISES)
def test_a_row_is_what_the_page_reads_and_its_intervals_hold(noise):
    row = CoverageRow.model_validate(coverage_row(np.random.default_rng(0), 60, 3, noise, LAW, BUDGETS[:1]))
    assert row.cells == 16
    assert row.mean_coverage > 0.9
    assert 0.9 < row.bias < 1.1


def test_false_verdicts_are_rare():
    rates = false_verdicts(np.random.default_rng(0), 200, 3, "equal", 3, 10)
    row = VerdictRow.model_validate({"sizes": 3, "policies": 10, "seeds": 3, "noise": "equal"} | rates)
    assert max(row.false_won, row.false_lost) < 0.05


def test_the_method_before_reads_off_the_lower_envelope_of_chords():
    """The second size is the better one at the middle budget; without noise, the interval is a point."""
    sizes = np.array([[3.4, 3.1, 2.6], [3.5, 2.9, 2.7]])[None, :, :, None].repeat(2, axis=3)
    low, high = old_interval(np.log([0.5, 1.0, 2.0]), sizes, np.full((1, 2), 2.75))
    assert np.exp([low[0], high[0]]) == pytest.approx(2 ** (0.15 / 0.3))
    low, _ = old_interval(np.log([0.5, 1.0, 2.0]), sizes, np.array([[2.75, 2.4]]))
    assert np.isnan(low[0]), "the second seed alone has no bracket"
