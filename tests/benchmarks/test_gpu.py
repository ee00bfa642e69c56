"""The GPU benchmark: its trial runs every section, and failing cases are recorded; times are not tested."""

import json
import os
import subprocess
import sys
import time
from functools import partial
from typing import Any, get_args

import pytest
import torch

from benchmarks.gpu.kernels import calls
from benchmarks.gpu.pattention import OUTPUTS, random_inputs
from benchmarks.gpu.section import SECTIONS, Section
from benchmarks.gpu.settings import KERNELS, PAPER, TRIAL
from benchmarks.gpu.timing import DeviceLost
from growctl.ladder.controls import equal_size_decoder
from growctl.ladder.load import load_schedule
from model.config import Kernels
from model.decoder_config import decoder_config
from model.tokenformer_config import tokenformer_config
from tests.workers import HANG_SECONDS, REPOSITORY
from tools.gpu_tables import COLUMNS, device_tables

CPU = torch.device("cpu")
QUICK = ("device", "kernels", "pattention", "training_eager", "zero")
TRIED = SECTIONS if os.environ.get("GROWCTL_SOAK") else QUICK
"""The sections of the trial. The others take most of its time; `make soak` tries them too."""


@pytest.fixture(scope="module")
def trial(training, tmp_path_factory) -> dict[str, Any]:
    output = tmp_path_factory.mktemp("trial") / "gpu_trial.json"
    options = ("--only", ",".join(TRIED), "--one-process", "--deadline", "10000", "--output", str(output))
    environment = os.environ | {"PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": ""}
    command = [str(REPOSITORY / "benchmarks/gpu/run.sh"), "--trial", *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(output.read_text())
    return found


def test_a_trial_runs_its_sections_and_the_documentation_shows_each(trial) -> None:
    assert list(SECTIONS) == list(COLUMNS)
    assert list(trial["sections"]) == list(TRIED)
    for name, section in trial["sections"].items():
        assert (name, section["status"], section["failures"], section["skipped"]) == (name, "done", [], [])
        found = {key for row in section["rows"] for key in row}
        planned = {"planned_over_measured"}  # only where the device counts its memory
        assert set(COLUMNS[name]) <= found | planned, name
    assert device_tables(trial | {"trial": False}, "gpu_trial.json").rstrip().endswith("Every case was measured.")


def test_a_trial_measures_every_form_piece_and_size(trial) -> None:
    rows = {name: section["rows"] for name, section in trial["sections"].items()}
    times, errors = rows["pattention"]
    assert set(times["forms"]) >= {"floor", "written_out", "ours", "compiled", "triton"}
    assert set(times["over_floor"]) == set(times["forms"]) - {"floor"}
    assert all(max(of[output] for output in OUTPUTS) < 0.05 for of in errors["errors"].values())
    pieces = next(row for row in rows["kernels"] if row["what"] == "pieces")
    assert set(pieces["over_plain"]) == set(calls(random_inputs(8, 16, 20, CPU)))
    assert {row["errors"]["output"] < 0.05 for row in rows["kernels"] if "errors" in row} == {True}
    for kernels in KERNELS:
        steps = [row for row in rows.get(f"training_{kernels}", []) if row["what"] == "steps"]
        assert [row["size"] for row in steps] == list(TRIAL.order) * (f"training_{kernels}" in TRIED)
        assert all(row["losses"][1] != row["losses"][0] for row in steps), "the update changed the model"
    assert rows["zero"][0]["engine_over_plain"] > 0


@pytest.mark.skipif("contexts" not in TRIED, reason="`make soak` tries these sections")
def test_a_whole_trial_compares_contexts_counts_waits_and_repeats_steps(trial) -> None:
    ratios = {(ratio["context"], ratio["kernels"]) for ratio in trial["sections"]["contexts"]["ratios"]}
    assert ratios == {(context, kernels) for context in TRIAL.contexts for kernels in KERNELS}
    assert [row["loop"] for row in trial["sections"]["host_syncs"]["rows"]] == ["plain", "worker"]
    assert trial["sections"]["repeatability"]["rows"][0]["same_in_a_process"]


def test_a_case_that_fails_is_recorded_and_the_next_one_runs_unless_the_device_is_lost(tmp_path) -> None:
    def fails(error: Exception) -> dict[str, Any]:
        raise error

    section = Section(TRIAL, CPU, time.monotonic() + 10_000, tmp_path / "found.json")
    assert section.case(partial(fails, ValueError("not this way")), size=1) is None
    assert section.case(lambda: {"found": 3}, size=2) == {"size": 2, "found": 3}
    with pytest.raises(DeviceLost):
        section.case(partial(fails, RuntimeError("CUDA error: an illegal memory access was encountered")), size=3)
    section.deadline = time.monotonic()
    assert section.case(dict, size=4) is None
    told = json.loads((tmp_path / "found.json").read_text())
    failed = [(failure["size"], failure["error"].partition(":")[0]) for failure in told["failures"]]
    assert failed == [(1, "ValueError"), (3, "RuntimeError")]
    assert told["rows"] == [{"size": 2, "found": 3}]
    assert told["skipped"] == [{"size": 4}]


def test_models_are_those_of_the_shipped_schedule_its_controls_and_every_kernel() -> None:
    schedule = load_schedule("openwebtext_1.4b", [])
    sizes = {stage.name: (stage.attention_tokens, stage.ffn_tokens) for stage in schedule.stages}
    assert sizes == PAPER.sizes
    assert PAPER.context == schedule.training.sequence_length
    assert all(size in PAPER.sizes for size in (*PAPER.order, *PAPER.zero_sizes, PAPER.largest))
    attention_tokens, ffn_tokens = PAPER.sizes[PAPER.largest]
    largest = tokenformer_config(attention_tokens=attention_tokens, ffn_tokens=ffn_tokens, **PAPER.shape)
    assert decoder_config(**PAPER.transformer) == equal_size_decoder(largest)
    assert get_args(Kernels) == KERNELS
