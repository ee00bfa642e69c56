"""The GPU benchmark: its trial runs every section, and failing cases are recorded; times are not tested."""

import json
import os
import signal
import subprocess
import sys
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from benchmarks.gpu.__main__ import Run
from benchmarks.gpu.host_syncs import watched
from benchmarks.gpu.kernels import calls
from benchmarks.gpu.pattention import OUTPUTS, deviations, ours, products, random_inputs, saved_bytes, written_out
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


def started(*arguments: object) -> subprocess.Popen[str]:
    command = [str(argument) for argument in (RUN, *arguments)]
    environment = os.environ | {"PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def trial(training, tmp_path_factory) -> dict[str, Any]:
    output = tmp_path_factory.mktemp("trial") / "gpu_trial.json"
    process = started("--trial", "--one-process", "--deadline", 10_000, "--output", output)
    out, err = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 0, out + err
    found: dict[str, Any] = json.loads(output.read_text())
    return found


def test_the_trial_runs_every_section_and_the_documentation_shows_each(trial) -> None:
    assert list(trial["sections"]) == list(SECTIONS) == list(COLUMNS)
    for name, section in trial["sections"].items():
        assert (name, section["status"], section["failures"], section["skipped"]) == (name, "done", [], [])
        found = {key for row in section["rows"] for key in row}
        planned = {"planned_over_measured"}  # only where the device counts its memory
        assert set(COLUMNS[name]) <= found | planned, name
    assert device_tables(trial | {"trial": False}, "gpu_trial.json").rstrip().endswith("Every case was measured.")


def test_the_trial_measures_every_form_piece_size_and_context(trial) -> None:
    rows = {name: section["rows"] for name, section in trial["sections"].items()}
    times, errors = rows["pattention"]
    assert set(times["forms"]) >= {"floor", "written_out", "ours", "compiled", "triton_full", "triton_elementwise"}
    assert set(times["over_floor"]) == set(times["forms"]) - {"floor"}
    assert all(max(of[output] for output in OUTPUTS) < 0.05 for of in errors["errors"].values())
    pieces = next(row for row in rows["kernels"] if row["what"] == "pieces")
    assert set(pieces["over_plain"]) == set(calls(random_inputs(8, 16, 20, CPU)))
    assert {row["errors"]["output"] < 0.05 for row in rows["kernels"] if "errors" in row} == {True}
    for kernels in KERNELS:
        steps = [row for row in rows[f"training_{kernels}"] if row["what"] == "steps"]
        assert [(row["size"], row["kernels"]) for row in steps] == [(size, kernels) for size in TRIAL.order]
        assert all(row["losses"][1] != row["losses"][0] for row in steps), "the update changed the model"
    ratios = {(ratio["context"], ratio["kernels"]) for ratio in trial["sections"]["contexts"]["ratios"]}
    assert ratios == {(context, kernels) for context in TRIAL.contexts for kernels in KERNELS}
    assert [row["loop"] for row in rows["host_syncs"]] == ["plain", "worker"]
    assert rows["repeatability"][0]["same_in_a_process"]
    assert rows["zero"][0]["engine_over_plain"] > 0


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


def test_a_signal_while_a_section_starts_leaves_no_process(tmp_path, monkeypatch) -> None:
    start, children = subprocess.Popen, []

    def signalled(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        children.append(start([sys.executable, "-c", "import time; time.sleep(600)"], **options))
        signal.raise_signal(signal.SIGTERM)
        return children[0]

    monkeypatch.setattr(subprocess, "Popen", signalled)
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        with pytest.raises(SystemExit):
            new_run(tmp_path, "device").section("device", 60.0, tmp_path)
        assert children[0].poll() == -signal.SIGKILL
    finally:
        signal.signal(signal.SIGTERM, before)
        children[0].kill()


def new_run(tmp_path: Path, *names: str, seconds: float = 10_000) -> Run:
    return Run(list(names), tmp_path / "gpu.json", time.monotonic() + seconds, trial=True, note=None)


def without_time(run: Run) -> None:
    run.deadline = run.started


def without_deepspeed(run: Run) -> None:
    run.missing.append("deepspeed")


def after_failed_kernels(run: Run) -> None:
    run.document["sections"]["kernels"] = {"status": "failed", "failures": [], "rows": []}


@pytest.mark.parametrize(
    ("name", "prepare", "reason"),
    [
        ("device", without_time, "no time is left"),
        ("zero", without_deepspeed, "there is no module deepspeed"),
        ("training_triton", after_failed_kernels, "the triton kernels failed in section kernels"),
    ],
)
def test_a_section_that_cannot_run_is_skipped_with_a_reason(tmp_path, name, prepare, reason) -> None:
    run = new_run(tmp_path, name)
    prepare(run)
    run.measure(run.section)
    told = json.loads((tmp_path / "gpu.json").read_text())
    assert told["sections"][name] == {"status": "skipped", "reason": reason}
    assert run.exit_code() == 1


def new_section(tmp_path: Path, seconds: float = 10_000) -> Section:
    return Section(TRIAL, CPU, time.monotonic() + seconds, tmp_path / "found.json")


def test_a_case_that_fails_is_recorded_and_the_next_one_runs(tmp_path) -> None:
    section = new_section(tmp_path)

    def fails() -> dict[str, Any]:
        raise ValueError("not this way")

    assert section.case(fails, size=1) is None
    assert section.case(lambda: {"found": 3}, size=2) == {"size": 2, "found": 3}
    told = json.loads((tmp_path / "found.json").read_text())
    (failure,) = told["failures"]
    assert (failure["size"], failure["error"]) == (1, "ValueError: not this way")
    assert failure["where"][-1].endswith(" fails")
    assert told["rows"] == [{"size": 2, "found": 3}]


def test_a_cuda_error_ends_its_section(tmp_path) -> None:
    def lost() -> dict[str, Any]:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(DeviceLost):
        new_section(tmp_path).case(lost, size=1)
    assert "illegal memory access" in (tmp_path / "found.json").read_text()


def test_a_case_without_remaining_time_is_skipped(tmp_path) -> None:
    assert new_section(tmp_path, seconds=-1).case(dict, size=1) is None
    assert json.loads((tmp_path / "found.json").read_text())["skipped"] == [{"size": 1}]


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


def test_the_forms_compute_the_same_function_and_the_floor_has_its_shapes() -> None:
    inputs = random_inputs(30, 16, 50, CPU)
    wide = type(inputs)(*(tensor.double() for tensor in inputs))
    assert max(deviations(ours(wide)(wide), tuple(g.float() for g in written_out(wide))).values()) < 1e-6
    assert [one.shape for one in products(inputs)] == [other.shape for other in written_out(inputs)]


def test_bytes_kept_for_backward_exclude_the_inputs() -> None:
    inputs = random_inputs(32, 16, 50, CPU)
    scores, norms = 2 * 32 * 50, 4 * 32
    assert saved_bytes(ours(inputs), inputs) == scores + norms
    assert saved_bytes(written_out, inputs) >= 3 * scores


def test_waits_are_counted_by_the_line_that_waits() -> None:
    with watched(CPU) as places:
        for _ in range(3):
            warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
        warnings.warn("something else", stacklevel=1)
    ((place, count),) = places.items()
    assert count == 3
    assert "test_waits_are_counted_by_the_line_that_waits" in place
