"""The benchmark of the judge finds what must hold."""

import numpy as np
import pytest

from benchmarks.judge_coverage import BUDGETS, LAWS, NOISES, coverage_row, false_verdicts


@pytest.mark.parametrize("noise", NOISES)
def test_the_judges_intervals_hold_the_truth(noise) -> None:
    law = {"exponent 0.9": LAWS["exponent 0.9"]}
    found = coverage_row(np.random.default_rng(0), 60, 3, noise, law, BUDGETS[:1])
    assert found["cells"] == 16
    assert found["mean_coverage"] > 0.9
    assert 0.9 < found["bias"] < 1.1


def test_false_verdicts_are_rare() -> None:
    rates = false_verdicts(np.random.default_rng(0), 200, 3, "equal", 3, 10)
    assert max(rates["false_won"], rates["false_lost"]) < 0.05
