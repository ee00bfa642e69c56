"""Energy counters, on an invented NVML, and what the ranks report together."""

import math
import sys
from types import SimpleNamespace

import pytest
import torch

from stages.train import usage as meter
from stages.train.usage import UsageMeter, gpu_joules


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The module `pynvml`, with one GPU that has counted `millijoules`, if it has a counter."""

    def counted(handle: str) -> int:
        if fake.millijoules is None:
            raise LookupError("Not Supported")
        return {"handle": fake.millijoules}[handle]

    fake = SimpleNamespace(NVMLError=LookupError, millijoules=40_000, nvmlInit=lambda: None)
    fake.nvmlDeviceGetHandleByUUID = {"GPU-1234": "handle"}.__getitem__
    fake.nvmlDeviceGetTotalEnergyConsumption = counted
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


def of_ranks(monkeypatch: pytest.MonkeyPatch, *others: list[float]) -> None:
    """Has the meter gather what other ranks hold."""

    def all_gather(ranks: list[torch.Tensor], own: torch.Tensor) -> None:
        for rank, values in zip(ranks, [own.tolist(), *others], strict=True):
            rank.copy_(torch.tensor(values, dtype=own.dtype))

    monkeypatch.setattr(meter.dist, "get_world_size", lambda: 1 + len(others))
    monkeypatch.setattr(meter.dist, "all_gather", all_gather)


@pytest.mark.parametrize(
    ("millijoules", "joules"),
    [(41_500, 1.5), (100, None), (None, None)],
    ids=["used", "a driver loaded anew", "off the bus or without a counter"],
)
def test_a_meter_counts_what_its_gpu_uses_from_its_start(nvml, monkeypatch, millijoules, joules) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="1234"))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 7)
    tensor = torch.tensor
    monkeypatch.setattr(torch, "tensor", lambda values, **options: tensor(values, **options | {"device": "cpu"}))
    of_ranks(monkeypatch)
    counting = UsageMeter(torch.device("cuda"))
    nvml.millijoules = millijoules
    assert counting.read()["gpu_joules"] == joules
    assert math.isnan(gpu_joules("GPU-of-another-machine"))
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert math.isnan(gpu_joules("GPU-1234")), "without NVML"


def test_ranks_add_up_their_energy_and_report_the_largest_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    of_ranks(monkeypatch, [30.0, 5e9, 1.0], [20.0, 6e9, 2e15])
    found = UsageMeter(torch.device("cpu")).read()
    assert tuple(found.values()) == (None, 6 * 10**9, 2 * 10**15), "this rank has no GPU, so the sum is unknown"
    of_ranks(monkeypatch)
    found = UsageMeter(torch.device("cpu")).read()
    assert tuple(found.values())[:2] == (None, None), "on CPUs only the resident memory is known"
    assert (found["peak_resident_bytes"] or 0) > 10**7
