"""A stage resumes on other ranks and at another ZeRO stage, in real processes, with the same training."""

import json
import signal
from itertools import pairwise

import pytest
import torch

from growctl.ledger.ledger import Ledger
from model.shapes import parameter_shapes
from stages.checkpoint.manifest import read_manifest, verify_checkpoint
from stages.checkpoint.parameters import read_parameter
from stages.metrics import read_metrics
from tests.growctl.runs import (
    as_killed_at,
    growctl,
    kill,
    losses,
    paused_rank,
    reached,
    run,
    stop,
    wait_for,
    write_schedule,
)

# The world changes during freezing and the ramp, with two learning rates and separate Adam steps.
COURSE = (
    "training.log_every=1", "evaluation.every=15", "growth.ramp=0.5", "growth.moments=reset",
    "growth.lr_scale=[1.0,0.5]", "growth.old_tokens={freeze_for: 25}", "checkpoint.keep=9",
)  # fmt: skip
FIRST, SECOND, THIRD = (
    (f"launch.devices={devices}", f"launch.zero_stage={zero_stage}", f"launch.offload={offload}")
    for devices, zero_stage, offload in ((2, 1, "none"), (1, 3, "none"), (2, 2, "optimizer"))
)


@pytest.fixture(scope="module")
def changed(training, tmp_path_factory):
    """(undisturbed run, run with 2 ranks ZeRO-1 -> 1 rank ZeRO-3 -> 2 ranks ZeRO-2, output of the second)."""
    folder = tmp_path_factory.mktemp("world-changes")
    start = ("run", write_schedule(folder), *COURSE)
    run(*start, *FIRST, "--runs-dir", folder / "whole")
    runs = folder / "changed"
    stage = as_killed_at(20, folder / "whole", runs)

    stalled = {"name": "stalled", "at": "stages.checkpoint.directory:finish_directory", "process": "converter"}
    in_conversion = json.dumps({"folder": str(folder / ".marks"), "faults": [stalled | {"do": "stall"}]})
    at_first_step, later = (paused_rank(folder / ".marks", "1-large", steps) for steps in (0, 21))
    second = [*start, *SECOND, "--runs-dir", runs]

    process = growctl(*second, faults=in_conversion)  # killed while it converts
    wait_for(lambda: any(stage.glob(".converted_00000020.incomplete/parameters/*")), process)
    said = [stop(process, signal.SIGKILL)[0]]
    assert not (stage / "converted_00000020").exists()
    process = growctl(*second, faults=at_first_step)  # killed before its first own checkpoint
    wait_for(lambda: [r["event"] for r in read_metrics(stage / "metrics.jsonl")].count("start") == 2, process)
    said.append(kill(process, runs)[0])
    assert verify_checkpoint(stage / "converted_00000020")
    process = growctl(*second, faults=later)
    wait_for(reached(stage / "metrics.jsonl", "checkpoint", 40), process)
    said.append(kill(process, runs)[0])
    assert not list(stage.glob("converted_*"))
    said.append(run(*start, *THIRD, "--runs-dir", runs)[0])
    return folder / "whole/tiny", runs / "tiny", [" ".join(words.split()) for words in said]


def test_losses_and_samples_agree_to_rounding_at_every_step(changed):
    whole, run_directory, _ = changed
    expected, found = losses(whole), losses(run_directory)
    assert found.keys() == expected.keys()
    assert len([key for key in found if key[0] == "1-large" and key[2] == "train"]) == 60
    for key, loss in expected.items():
        assert found[key] == pytest.approx(loss, abs=1e-4), key
    # The losses of different sequences differ far more, so another order would show.
    training = [loss for (stage, _, event), loss in expected.items() if (stage, event) == ("1-large", "train")]
    assert max(abs(a - b) for a, b in pairwise(training[50:])) > 1e-2


def test_learning_rates_steps_and_data_position_are_kept(changed):
    whole, run_directory, _ = changed
    course = [
        {r["step"]: (r["learning_rate"], r["tokens_seen"]) for r in records if r["event"] == "train"}
        for records in (read_metrics(path / "stages/1-large/metrics.jsonl") for path in (whole, run_directory))
    ]
    assert course[0] == course[1]
    expected, found = (verify_checkpoint(path / "stages/1-large/final") for path in (whole, run_directory))
    kept = {"model", "step", "group_steps", "samples_seen", "seed", "precision", "dataset_fingerprint"}
    assert found.model_dump(include=kept) == expected.model_dump(include=kept)
    assert set(found.group_steps.values()) == {60}


def test_weights_and_moments_agree_to_rounding(changed):
    whole, run_directory, _ = changed
    directories = [path / "stages/1-large/final" for path in (whole, run_directory)]
    manifests = [read_manifest(directory) for directory in directories]
    for name in parameter_shapes(manifests[0].model):
        expected, found = (read_parameter(d, m, name) for d, m in zip(directories, manifests, strict=True))
        for there, here in zip(expected, found, strict=True):
            torch.testing.assert_close(here, there, rtol=1e-2, atol=1e-3, msg=name)


def test_the_devices_of_each_attempt_are_recorded(changed):
    _, run_directory, _ = changed
    with Ledger(run_directory / "ledger.db", read_only=True) as ledger:
        rows = ledger.query(
            "SELECT DISTINCT attempt, num_devices FROM work WHERE stage = :s AND last_step > first_step", s="large"
        )
    assert sorted(map(tuple, rows)) == [(1, 2), (3, 1), (4, 2)]
    starts = [r for r in read_metrics(run_directory / "stages/1-large/metrics.jsonl") if r["event"] == "start"]
    found = [(r["num_devices"], r["zero_stage"], r["converted"]) for r in starts]
    assert found == [(2, 1, False), (1, 3, True), (1, 3, True), (2, 2, True)]


def test_each_conversion_happens_once_and_leaves_nothing(changed):
    _, run_directory, said = changed
    assert ["converting it for" in words for words in said] == [True, True, False, True]
    assert "resuming from converted_00000020 (attempt 3)" in said[2]
    stage = run_directory / "stages/1-large"
    assert not [*stage.glob("converted_*"), *stage.glob(".converted_*"), *stage.glob("broken-*")]
    assert [path.name for path in sorted(stage.glob("step_*"))] == [f"step_000000{n}" for n in (10, 20, 30, 40, 43, 50)]
