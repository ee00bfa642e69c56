"""The benchmark of generating text compares equal texts; its times are not tested."""

import json

from benchmarks.generate import Case, cached, grown, measured, quickstart, uncached
from model.initialization import build_model


def test_both_ways_generate_the_same_tokens():
    model = build_model(grown(quickstart(4), (4, 16)), seed=0).double().eval()
    assert cached(model, [1, 2, 3], 5) == uncached(model, [1, 2, 3], 5)


def test_a_row_has_both_speeds_and_their_ratio():
    row = measured(Case(grown(quickstart(4), (4, 16)), 2, 3), turns=2)
    assert row["generations"] == 2
    assert row["tokens_per_second"] > 0 < row["tokens_per_second_without_cache"]
    low, high = row["ratio_range"]
    assert low <= row["ratio"] <= high
    json.dumps(row)
