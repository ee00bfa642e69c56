"""The benchmark of expanding runs and counts right; its times are not tested."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from model.config import num_parameters, parameter_shapes
from model.growth import added_parameters
from model.policy import grow_config
from tests.stages.checkpoints import small_config

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "expand.py"


@pytest.mark.slow
def test_the_small_size_runs_and_its_counts_are_right(tmp_path):
    command = [sys.executable, BENCHMARK, "--size", "small", "--repetitions", "1", "--directory", tmp_path]
    document = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    old = small_config(attention_tokens=5, ffn_tokens=20)
    new = grow_config(old, attention_tokens=4, ffn_tokens=16)
    assert document["files_linked"] == len(parameter_shapes(old))
    assert document["files_rewritten"] == 0
    assert document["files_new"] == len(added_parameters(old, new))
    added_bytes = 4 * (num_parameters(new) - num_parameters(old))
    assert document["bytes_of_plain"] == added_bytes
    assert added_bytes < document["bytes_written"] < document["bytes_of_child"]
    assert 3 * 4 * num_parameters(old) < document["bytes_of_parent"] < document["bytes_of_child"]
    assert document["share_written"] == round(document["bytes_written"] / document["bytes_of_child"], 4)
    assert len(document["expand"]) == len(document["plain"]) == len(document["ratios"]) == 1
    assert list(tmp_path.iterdir()) == []
