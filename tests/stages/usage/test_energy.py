"""Energy counters, on an invented NVML and on invented RAPL files."""

import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from stages.metrics_lines import Usage
from stages.usage import meter
from stages.usage.meter import UsageMeter, cpu_counters, gpu_counter

RANGE = 262_143_328_850
"""Microjoules at which a real counter wraps around."""


class Rapl:
    """A folder like /sys/class/powercap."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def zone(self, zone: str, name: str, microjoules: int = 0) -> None:
        folder = self.root / zone
        folder.mkdir()
        (folder / "name").write_text(f"{name}\n")
        (folder / "max_energy_range_uj").write_text(f"{RANGE}\n")
        self.count(zone, microjoules)

    def count(self, zone: str, microjoules: int) -> None:
        (self.root / zone / "energy_uj").write_text(f"{microjoules}\n")

    def joules_after(self, **counts: int) -> float:
        counters = cpu_counters(self.root)
        for zone, microjoules in counts.items():
            self.count(zone.replace("_", ":").replace("intel:rapl", "intel-rapl"), microjoules)
        return sum(counter.joules() for counter in counters)


@pytest.fixture
def rapl(tmp_path: Path) -> Rapl:
    """A machine with two processors, the first with memory."""
    found = Rapl(tmp_path)
    found.zone("intel-rapl:0", "package-0", 5_000_000)
    found.zone("intel-rapl:0:0", "dram")
    found.zone("intel-rapl:1", "package-1", RANGE - 1_000_000)
    return found


def test_the_energy_is_that_since_the_counter_was_made(rapl: Rapl) -> None:
    assert rapl.joules_after(intel_rapl_0=7_500_000, intel_rapl_0_0=500_000) == pytest.approx(3.0)


def test_a_counter_that_wraps_around_loses_nothing(rapl: Rapl) -> None:
    assert rapl.joules_after(intel_rapl_1=2_000_000) == pytest.approx(3.0)


def test_energy_of_a_part_of_a_processor_is_not_counted_twice(rapl: Rapl) -> None:
    for zone, name in (("intel-rapl:0:1", "core"), ("intel-rapl:2", "psys"), ("intel-rapl-mmio:0", "package-0")):
        rapl.zone(zone, name)
    assert len(cpu_counters(rapl.root)) == 3


def test_a_machine_of_which_one_counter_cannot_be_read_has_none(rapl: Rapl) -> None:
    (rapl.root / "intel-rapl:1/energy_uj").unlink()
    assert cpu_counters(rapl.root) == []
    assert cpu_counters(rapl.root / "missing") == []


def test_a_counter_that_fails_later_is_unknown_from_then_on(rapl: Rapl) -> None:
    counter = cpu_counters(rapl.root)[0]
    rapl.count("intel-rapl:0", 6_000_000)
    assert counter.joules() == pytest.approx(1.0)
    (rapl.root / "intel-rapl:0/energy_uj").unlink()
    assert math.isnan(counter.joules())
    rapl.count("intel-rapl:0", 9_000_000)
    assert math.isnan(counter.joules())


class FakeNvml(SimpleNamespace):
    """The module `pynvml`, with one GPU that has counted `millijoules`."""

    class NVMLError(Exception):
        """What the real module raises."""

    millijoules: int | None = 40_000

    def nvmlInit(self) -> None:
        """Always succeeds."""

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid != "GPU-1234":
            raise self.NVMLError("Not Found")
        return "handle"

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:
        if handle != "handle" or self.millijoules is None:
            raise self.NVMLError("Not Supported")
        return self.millijoules


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


def test_a_gpu_counts_from_the_drivers_total(nvml: FakeNvml) -> None:
    counter = gpu_counter("GPU-1234")
    nvml.millijoules = 41_500
    assert counter.joules() == 1.5


def test_a_driver_that_was_loaded_anew_makes_the_energy_unknown(nvml: FakeNvml) -> None:
    counter = gpu_counter("GPU-1234")
    nvml.millijoules = 100
    assert math.isnan(counter.joules())


def test_a_gpu_without_a_counter_or_without_nvml_has_none(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpu_counter("GPU-of-another-machine") is None
    nvml.millijoules = None
    assert gpu_counter("GPU-1234") is None
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpu_counter("GPU-1234") is None


def test_a_gpu_that_falls_off_the_bus_is_unknown_and_stops_nothing(nvml: FakeNvml) -> None:
    counter = gpu_counter("GPU-1234")
    nvml.millijoules = None
    assert math.isnan(counter.joules())


def gather(*others: list[float]) -> Any:
    """Stands in for all_gather, with what the other ranks hold."""

    def all_gather(ranks: list[torch.Tensor], own: torch.Tensor) -> None:
        for rank, values in zip(ranks, [own.tolist(), *others], strict=True):
            rank.copy_(torch.tensor(values, dtype=own.dtype))

    return all_gather


def usage(monkeypatch: pytest.MonkeyPatch, *others: list[float]) -> Usage:
    monkeypatch.setattr(meter.dist, "get_world_size", lambda: 1 + len(others))
    monkeypatch.setattr(meter.dist, "all_gather", gather(*others))
    return UsageMeter(torch.device("cpu")).read()


def test_ranks_add_up_their_energy_and_report_the_largest_memory(rapl: Rapl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "cpu_counters", lambda: cpu_counters(rapl.root))
    found = usage(monkeypatch, [30.0, 0.0, 5e9, 1.0], [20.0, 7.0, 6e9, 2e15])
    assert tuple(found.values()) == (None, 7.0, 6 * 10**9, 2 * 10**15), "this rank has no GPU, so the sum is unknown"


def test_on_cpus_only_the_resident_memory_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "cpu_counters", list)
    found = usage(monkeypatch)
    assert tuple(found.values())[:3] == (None, None, None)
    assert (found["peak_resident_bytes"] or 0) > 10**7


def test_only_the_first_rank_of_a_machine_reads_its_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise AssertionError("another rank counts them")

    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(meter, "cpu_counters", fail)
    assert usage(monkeypatch)["cpu_joules"] == 0.0
