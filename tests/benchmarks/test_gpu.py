"""The GPU benchmark: its trial runs every section, and failing cases are recorded; times are not tested."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from benchmarks.gpu.__main__ import Run
from benchmarks.gpu.kernels import calls
from benchmarks.gpu.pattention import OUTPUTS, random_inputs
from benchmarks.gpu.section import SECTIONS, Section
from benchmarks.gpu.settings import KERNELS, PAPER, TRIAL
from benchmarks.gpu.timing import DeviceLost
from growctl.ladder.controls import equal_size_transformer
from growctl.ladder.load import load_schedule
from model.config import Kernels, TransformerConfig, tokenformer_config
from tests.benchmarks.test_speed import processes_of
from tests.growctl.runs import wait_until
from tests.workers import HANG_SECONDS
from tools.gpu_tables import COLUMNS, device_tables

REPOSITORY = Path(__file__).resolve().parents[2]
RUN = REPOSITORY / "benchmarks" / "gpu" / "run.sh"
CPU = torch.device("cpu")
QUICK = ("device", "kernels", "pattention", "training_eager", "training_compiled", "zero")
TRIED = SECTIONS if os.environ.get("GROWCTL_SOAK") else QUICK
"""The sections of the trial. The others take most of its time; `make soak` tries them too."""


def started(*arguments: object) -> subprocess.Popen[str]:
    command = [str(argument) for argument in (RUN, *arguments)]
    environment = os.environ | {"PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def trial(training, tmp_path_factory) -> dict[str, Any]:
    output = tmp_path_factory.mktemp("trial") / "gpu_trial.json"
    only = ("--only", ",".join(TRIED))
    process = started("--trial", *only, "--one-process", "--deadline", 10_000, "--output", output)
    out, err = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 0, out + err
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
    assert set(times["forms"]) >= {"floor", "written_out", "ours", "compiled", "triton_full", "triton_elementwise"}
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "device", "--output", "gpu.json"], "no GPU"),
        (["--trial"], "--trial and --only need --output"),
        (["--only", "devices", "--output", "gpu.json"], "--only 'devices': must be among device, kernels"),
    ],
)
def test_what_cannot_be_measured_gives_one_message_and_no_file(arguments, message, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    process = started(*arguments)
    _, err = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 2
    assert message in " ".join(err.split())
    assert not list(tmp_path.iterdir())


def commands_of_children(pid: int) -> str:
    commands = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            commands.append(Path(f"/proc/{child}/cmdline").read_text().replace("\0", " "))
    return " ".join(commands)


@pytest.mark.trains
def test_a_terminated_run_keeps_its_results_and_leaves_no_process(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    output = tmp_path / "gpu.json"
    process = started("--trial", "--only", "device,training_eager", "--deadline", 10_000, "--output", output)
    wait_until(lambda: "benchmarks.gpu.section training_eager" in commands_of_children(process.pid), process)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 128 + signal.SIGTERM
    sections = json.loads(output.read_text())["sections"]
    assert sections["device"]["status"] == "done"
    assert len(sections["device"]["rows"]) == 4
    assert sections["training_eager"]["status"] == "interrupted"
    assert not processes_of(tmp_path)


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("device", lambda run: setattr(run, "deadline", run.started), "no time is left"),
        ("zero", lambda run: run.missing.append("deepspeed"), "there is no module deepspeed"),
        (
            "training_triton",
            lambda run: run.document["sections"].update(kernels={"status": "failed"}),
            "the triton kernels failed in section kernels",
        ),
    ],
)
def test_a_section_that_cannot_run_is_skipped_with_a_reason(tmp_path, name, change, reason) -> None:
    run = Run([name], tmp_path / "gpu.json", time.monotonic() + 10_000, trial=True, note=None)
    change(run)
    run.measure(run.section)
    told = json.loads((tmp_path / "gpu.json").read_text())
    assert told["sections"][name] == {"status": "skipped", "reason": reason}
    assert run.exit_code() == 1


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
    assert [(failure["size"], failure["error"].partition(":")[0]) for failure in told["failures"]] == [
        (1, "ValueError"),
        (3, "RuntimeError"),
    ]
    assert told["failures"][0]["where"][-1].endswith(" fails")
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
    assert TransformerConfig(**PAPER.transformer) == equal_size_transformer(largest)
    assert get_args(Kernels) == KERNELS
