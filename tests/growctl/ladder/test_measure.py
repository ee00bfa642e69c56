"""`growctl plan --measure` times real steps of every size and leaves no files behind."""

import json
from pathlib import Path

import pytest

from growctl.ladder import measure
from growctl.ladder.measure import measure_sizes
from growctl.ladder.plan import make_plan
from growctl.launch.machines import Devices, Launch
from growctl.schedule.blocks import Schedule
from stages.probe.records import RESULT
from stages.spec import TrainSpec
from tests.growctl.ladders import ladder
from tests.growctl.runs import run

SCHEDULE = """
data: {source: nowhere, vocab_size: 300}
model: {num_layers: 2, hidden_size: 32, num_heads: 2}
stages:
  - {name: small, attention_tokens: 8, ffn_tokens: 16, train_steps: 100}
  - {name: endless, attention_tokens: 8, ffn_tokens: 10000000000, train_steps: 100}
training: {sequence_length: 32, batch_size: 24, precision: fp32}
learning_rate: {peak: 5e-3}
launch: {devices: 2, micro_batch_size: 4, zero_stage: 2, hardware: {flops: 1T, price_per_device_hour: 1.5}}
"""


@pytest.mark.trains
def test_measuring_times_real_steps_reports_failures_and_leaves_nothing_behind(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tiny.yaml").write_text(SCHEDULE)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    out, err = run("plan", tmp_path / "tiny.yaml", "--measure", "--json", "--runs-dir", tmp_path / "runs")
    plan = json.loads(out)
    small, endless = plan["stages"]
    assert small["measured"]["last_micro_batch_seconds"] > 0
    expected = 2 * small["measured"]["micro_batch_seconds"] + small["measured"]["last_micro_batch_seconds"]
    assert small["wall_seconds"] == pytest.approx(100 * expected)  # 24 sequences on 2 devices: 3 micro-batches of 4
    assert small["tokens_per_second"] == pytest.approx(24 * 32 / expected)
    assert 0 < small["mfu"] < 1
    assert small["money"] == pytest.approx(small["wall_seconds"] / 3600 * 2 * 1.5)
    assert (endless["wall_seconds"], endless["measured"], plan["total"]["wall_seconds"]) == (None, None, None)
    [failure] = [warning for warning in plan["warnings"] if "could not be measured" in warning]
    assert failure.startswith("Stage endless of tiny could not be measured: ")
    assert "memory" in failure
    assert "measuring stage small of tiny, micro-batches of 4 (1 of 2)" in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tiny.yaml", "tmp"]
    assert list((tmp_path / "tmp").glob("growctl-*")) == []


def specs_of(schedule: Schedule, monkeypatch: pytest.MonkeyPatch) -> list[tuple[TrainSpec, int]]:
    """The specs that the workers would get, with their number."""
    specs: list[tuple[TrainSpec, int]] = []
    lines: list[str] = []

    def launch(spec: Path, num_devices: int, gpus: bool, module: str) -> Launch:
        assert module == "stages.probe.time_steps"
        specs.append((TrainSpec.model_validate_json(spec.read_text()), num_devices))
        found = {"micro_batch_seconds": 1.0, "last_micro_batch_seconds": 2.0, "num_steps": 3, "memory": None}
        (spec.parent / RESULT).write_text(json.dumps(found | {"num_devices": num_devices, "device": "CPU"}))
        return Launch(["true"], {})

    monkeypatch.setattr(measure, "local_launch", launch)
    measured = measure_sizes(make_plan(schedule), lines.append)
    assert measured.where.endswith(" x CPU")
    assert measured.failures == ()
    assert len(measured.steps) == len(specs) == len(lines)
    return specs


def test_each_model_and_micro_batch_is_measured_once_with_the_settings_of_its_run(monkeypatch) -> None:
    kinds = [{"kind": "decoder-scratch"}, {"kind": "official-growth"}, {"kind": "best-scratch", "budgets": [2.0]}]
    controls = [{"kind": "tokenformer-scratch", "budgets": [0.5, 1.0]}, *kinds]
    launch = {"devices": 2, "micro_batch_size": 1, "zero_stage": 3, "offload": "optimizer"}
    specs = specs_of(ladder((20, 30), controls=controls, launch=launch), monkeypatch)
    # Two stages, the last size from scratch (with one generation) and its decoder. The smallest size from scratch
    # is the base itself, and the official growth ends at the same sizes.
    assert len(specs) == len({spec.model for spec, _ in specs}) == 4
    for spec, num_devices in specs:
        assert num_devices == 2
        assert (spec.zero_stage, spec.offload, spec.micro_batch_size, spec.sequence_length) == (3, "optimizer", 1, 16)
        assert spec.batch_size == 4  # two of a step's four micro-batches, on two devices
        assert not Path(spec.directory).exists()


def test_a_single_micro_batch_is_timed_alone_and_a_clusters_plan_uses_local_devices(monkeypatch) -> None:
    monkeypatch.setattr(measure, "local_devices", lambda *_: Devices(2, "cpu", fast_bf16=False))
    for launch, expected in (
        ({"devices": 1}, (8, 8, 1)),
        ({"cluster": "slurm", "devices": 8}, (2, 1, 2)),
        ({"cluster": "slurm", "devices": 1}, (8, 8, 1)),
    ):
        [(spec, num_devices)] = specs_of(ladder((20,), launch=launch), monkeypatch)
        assert (spec.batch_size, spec.micro_batch_size, num_devices) == expected
