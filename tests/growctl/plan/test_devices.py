"""Which devices a plan is for: what a run would find, without torch."""

import os
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from growctl.launch.local import local_devices
from growctl.plan import devices
from growctl.plan.devices import PlannedDevices, count_gpus, planned_devices, planned_precision
from stages.engine.engine import choose_precision
from tests.growctl.ladders import ladder

H100 = {"device": "h100"}


def on(launch: dict, num_gpus: int, monkeypatch: pytest.MonkeyPatch) -> PlannedDevices:
    """The planned devices for a launch block on a machine with that number of GPUs."""
    monkeypatch.setattr(devices, "count_gpus", lambda: num_gpus)
    return planned_devices(ladder(launch=launch))


@pytest.mark.parametrize(
    ("files", "visible", "expected"),
    [
        ([], None, 0),
        (["dev/nvidia0", "dev/nvidia1", "dev/nvidiactl", "dev/nvidia-uvm"], None, 2),
        (["proc/driver/nvidia/gpus/0000:01:00.0", "proc/driver/nvidia/gpus/0000:02:00.0"], None, 2),
        (
            ["dev/nvidia3", "proc/driver/nvidia/gpus/a", "proc/driver/nvidia/gpus/b"],
            None,
            1,
        ),  # a container's GPU
        (["dev/nvidia0", "dev/nvidia1"], "1", 1),
        (["dev/nvidia0", "dev/nvidia1"], "0, GPU-8d2f", 2),
        (["dev/nvidia0", "dev/nvidia1"], "", 0),
        (["dev/nvidia0", "dev/nvidia1"], "0,-1,1", 1),
        (["dev/nvidia0"], "0,1,2", 1),
    ],
)
def test_gpus_are_counted_by_their_files_and_what_cuda_may_see(
    files: list[str], visible: str | None, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert count_gpus(tmp_path) == expected


def test_a_plan_counts_the_gpus_that_torch_counts() -> None:
    assert count_gpus() == torch.cuda.device_count()


@given(st.integers(1, 4096), st.sampled_from([None, 1, 2, 3]))
def test_without_gpus_auto_is_the_number_of_ranks_that_a_run_starts(batch_size: int, micro: int | None) -> None:
    size = batch_size * (micro or 1)
    schedule = ladder(
        training={"sequence_length": 16, "batch_size": size}, launch={"micro_batch_size": micro or "auto"}
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices, "count_gpus", lambda: 0)
        patch.setattr(torch.cuda, "is_available", lambda: False)
        patch.setattr(os, "sched_getaffinity", lambda pid: set(range(6)))
        found = planned_devices(schedule)
        assert (found.per_machine, found.type == "cuda") == local_devices("auto", batch_size)
    assert found.note is None


def test_a_plan_uses_this_machines_gpus_or_else_the_named_device(monkeypatch) -> None:
    assert on({}, 4, monkeypatch) == PlannedDevices(4, "cuda")
    assert on({"hardware": H100}, 4, monkeypatch) == PlannedDevices(4, "cuda")
    assert on({"devices": 3}, 0, monkeypatch) == PlannedDevices(3, "cpu")
    assert on({"devices": 3, "hardware": H100}, 0, monkeypatch) == PlannedDevices(3, "cuda")
    one = on({"hardware": H100}, 0, monkeypatch)
    assert (one.per_machine, one.type) == (1, "cuda")
    assert one.note is not None
    assert "one h100" in one.note


def test_a_cluster_without_a_number_of_devices_is_planned_with_one_and_a_note(tmp_path: Path, monkeypatch) -> None:
    hostfile = tmp_path / "hostfile"
    hosts = {"cluster": "hostfile", "nodes": 2, "hostfile": {"path": str(hostfile)}}
    missing = on(hosts, 0, monkeypatch)
    assert missing.per_machine == 1
    assert missing.note is not None
    assert str(hostfile) in missing.note
    hostfile.write_text("a slots=8\nb slots=4\n")
    assert on(hosts, 0, monkeypatch) == PlannedDevices(4, "cuda")
    assert on({"cluster": "slurm", "devices": 8}, 0, monkeypatch) == PlannedDevices(8, "cuda")
    assert on({"cluster": "slurm", "devices": 8, "slurm": {"gpus": False}}, 2, monkeypatch).type == "cpu"
    unsaid = on({"cluster": "slurm"}, 4, monkeypatch)
    assert unsaid.per_machine == 1
    assert unsaid.note is not None
    assert "launch.devices" in unsaid.note


def test_auto_precision_matches_a_workers_choice_on_this_cpu() -> None:
    schedule = ladder()
    assert planned_precision(schedule, "cpu") == choose_precision("auto", torch.device("cpu"))
    assert planned_precision(schedule, "cuda") == "bf16"
    asked = ladder(training={"sequence_length": 16, "batch_size": 8, "precision": "fp32"})
    assert {planned_precision(asked, device) for device in ("cpu", "cuda")} == {"fp32"}
