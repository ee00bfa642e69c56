"""How workers are laid on the machine: devices, threads and the launcher's command."""

import base64
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from growctl.launch import MOST_CPU_RANKS, local_command, local_devices, local_environment


def world_of(command: list[str]) -> dict[str, list[str]]:
    encoded = next(a for a in command if a.startswith("--world_info=")).removeprefix("--world_info=")
    return json.loads(base64.urlsafe_b64decode(encoded))


@pytest.mark.parametrize(
    ("visible", "expected"),
    [(None, ["0", "1"]), ("", ["0", "1"]), ("2,3,5", ["2", "3"]), ("GPU-a, GPU-b", ["GPU-a", "GPU-b"])],
)
def test_the_devices_that_the_user_made_visible_are_the_ones_used(monkeypatch, visible, expected):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert world_of(local_command(Path("spec.json"), 2)) == {"localhost": expected}


@pytest.mark.skipif(torch.cuda.is_available(), reason="counts GPUs instead")
def test_without_gpus_there_is_a_rank_a_core_as_far_as_they_divide_the_batch(monkeypatch):
    for cores, batch_size, expected in [(2, 8, 2), (2, 9, 1), (6, 8, 4), (64, 64, MOST_CPU_RANKS), (1, 8, 1)]:
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: set(range(cores)))
        assert local_devices("auto", batch_size) == (expected, False)
    assert local_devices(3, 8) == (3, False)


def test_cpu_workers_share_the_cores_and_stay_on_the_loopback(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    environment = local_environment(2, gpus=False)
    assert (environment["OMP_NUM_THREADS"], environment["GLOO_SOCKET_IFNAME"]) == ("3", "lo")
    assert environment["PYTHONSAFEPATH"] == "1"


def test_a_model_py_where_the_user_stands_is_not_taken_for_growctls(tmp_path):
    (tmp_path / "model.py").write_text("raise SystemExit(3)")
    result = subprocess.run(
        [sys.executable, "-c", "import stages.spec"],
        cwd=tmp_path,
        env=local_environment(1, gpus=False),
        check=False,
    )
    assert result.returncode == 0
