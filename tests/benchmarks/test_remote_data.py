"""The benchmark of reading remote tokens measures both readers; its times are not tested."""

import json
from pathlib import Path

from benchmarks.remote_data import GOALS, measured


def test_the_document_has_the_ratio_and_every_speed(tmp_path: Path) -> None:
    document = measured(tmp_path, num_tokens=8192, turns=2, batches=2)
    assert document["ratios"].keys() == GOALS.keys()
    assert document["tokens_per_second"].keys() == {"local", "remote", "first_read"}
    assert min(document["tokens_per_second"].values()) > 0
    json.dumps(document)
