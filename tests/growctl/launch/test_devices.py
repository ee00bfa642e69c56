"""`plan`, `run` and `--dry-run` agree on devices, and query torch only when necessary.

A machine with GPUs is faked: device files in a folder, and a Python that answers for the torch of a worker.
"""

import json
import os
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from growctl.cli.dry_run import dry_run_text
from growctl.ladder.costs import stage_checkpoint_bytes
from growctl.ladder.measure import _devices_here
from growctl.ladder.plan import make_plan
from growctl.ladder.stage_plans import plan_stages
from growctl.launch import devices
from growctl.launch.devices import local_devices
from growctl.launch.local import Local
from growctl.launch.machines import Devices, LaunchError
from growctl.launch.resolve import machines_of, planned_devices
from growctl.run.requests import LadderRequest, remaining_bytes
from growctl.run.screen import Screen
from growctl.run.stage_run import Execution
from growctl.schedule.blocks import Schedule
from stages.engine.devices import cpu_is_fast_at_bf16, visible_gpus
from stages.engine.engine import choose_precision
from stages.probe.machine import describe
from stages.probe.records import DeviceFacts
from tests.growctl.ladders import ladder

GIB = 2**30
H100 = {"device": "h100"}


def gpu(name: str = "GPU", capability: str = "9.0", fast_bf16: bool = True, memory: int = 80 * GIB) -> DeviceFacts:
    return DeviceFacts(
        kind="cuda", name=name, memory_bytes=memory, free_bytes=memory, capability=capability, fast_bf16=fast_bf16
    )


V100 = gpu("V100", "7.0", fast_bf16=False, memory=32 * GIB)

PYTHON = """#!{python}
import json, os, sys
open({asked!r}, "a").write(" ".join(sys.argv[1:]) + "\\n")
found = json.loads({found!r})
for variable in {variables!r}:
    if variable in os.environ:
        found = [found[int(index)] for index in os.environ[variable].split(",") if index]
print("a warning of torch's")
print(json.dumps({{"cuda": None, "hip": None, "driver": None, "problem": None, "devices": found}}))
"""
"""A fake Python for workers: obeys the variables that torch would, and records its arguments."""


class Machine:
    """A fake machine."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.monkeypatch = folder, monkeypatch
        self.asked = folder / "asked"
        for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "DS_ACCELERATOR"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
        self.has()

    def has(self, *files: str, gpus: tuple[DeviceFacts, ...] = ()) -> None:
        """Gives the machine device files, and the GPUs that torch finds."""
        (self.folder / "dev").mkdir(exist_ok=True)
        for file in files:
            (self.folder / "dev" / file).touch()
        found = json.dumps([each.model_dump() for each in gpus])
        obeyed = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES") if "kfd" in files else ("CUDA_VISIBLE_DEVICES",)
        self.answers(PYTHON.format(python=sys.executable, asked=str(self.asked), found=found, variables=obeyed))
        self.monkeypatch.setattr(devices, "DEVICE_FILES", self.folder / "dev")

    def answers(self, script: str) -> None:
        """Makes `script` answer for the workers' torch."""
        devices.ask_torch.cache_clear()
        program = self.folder / "python"
        program.write_text(script)
        program.chmod(0o755)
        self.monkeypatch.setattr(devices, "sys", type("FakeSys", (), {"executable": str(program)}))

    @property
    def times_torch_was_asked(self) -> int:
        return len(self.asked.read_text().splitlines()) if self.asked.exists() else 0


@pytest.fixture
def other_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def everyones_answers(schedule: Schedule, folder: Path) -> Devices:
    """The plan's devices; asserts that the run, the dry run and the timing of steps use the same."""
    planned, plan, machines = planned_devices(schedule), make_plan(schedule), machines_of(schedule)
    assert isinstance(machines, Local)
    assert machines.on_each == _devices_here(schedule) == plan.devices == planned
    assert (machines.devices, plan.device_memory_bytes) == (planned.per_machine, planned.memory_bytes)
    text = dry_run_text(LadderRequest.of(schedule, "s", folder / "runs", None, with_controls=False))
    assert f"start_ranks {planned.per_machine} " in text
    assert ("DS_ACCELERATOR=cpu" in text) == (planned.type == "cpu")
    return planned


@pytest.mark.slow
@given(batch=st.integers(1, 4096), micro=st.integers(1, 3), cores=st.integers(1, 12))
def test_without_gpus_there_are_as_many_ranks_as_cores_up_to_eight_that_divide_the_micro_batches(batch, micro, cores):
    training = {"sequence_length": 16, "batch_size": batch * micro}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DS_ACCELERATOR", "cpu")
        patch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
        found = planned_devices(ladder(training=training, launch={"micro_batch_size": micro}))
        assert found == local_devices("auto", batch)
        assert local_devices(13, batch).per_machine == 13
    divisors = {ranks for ranks in range(1, 9) if batch % ranks == 0 and ranks <= cores}
    assert (found.type, found.per_machine) == ("cpu", max(divisors))


def test_gpus_are_ignored_if_deepspeed_is_set_to_the_cpu(other_machine, monkeypatch):
    other_machine.has("nvidia0", gpus=(gpu(),))
    assert planned_devices(ladder(launch={"environment": {"DS_ACCELERATOR": "cpu"}})).type == "cpu"
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    assert planned_devices(ladder()).type == "cpu"
    assert visible_gpus() == []
    assert [device.kind for device in describe(with_deepspeed=False).devices] == ["cpu"]


MIXED = (gpu(), gpu(), V100)
ON_CPU = Devices(2, "cpu", cpu_is_fast_at_bf16())


@pytest.mark.parametrize(
    ("file", "gpus", "variables", "launch", "expected"),
    [
        ("kfd", (gpu(memory=192 * GIB),) * 4, {}, {}, Devices(4, "cuda", True, 192 * GIB)),
        ("kfd", (gpu(),) * 4, {"HIP_VISIBLE_DEVICES": "0,2"}, {}, Devices(2, "cuda", True, 80 * GIB)),
        ("nvidia0", MIXED, {"CUDA_VISIBLE_DEVICES": "2"}, {}, Devices(1, "cuda", False, 32 * GIB)),
        ("null", MIXED, {}, {}, ON_CPU),
        ("nvidia0", (gpu(), V100), {}, {}, Devices(2, "cuda", False, 32 * GIB)),
        ("nvidia0", MIXED, {}, {"environment": {"CUDA_VISIBLE_DEVICES": "1"}}, Devices(1, "cuda", True, 80 * GIB)),
        ("nvidia0", MIXED, {}, {"devices": 2}, Devices(2, "cuda", True, 80 * GIB)),
    ],
)
def test_only_gpus_in_use_count(other_machine, tmp_path, monkeypatch, file, gpus, variables, launch, expected):
    other_machine.has(file, gpus=gpus)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert everyones_answers(ladder(launch=launch), tmp_path) == expected
    assert other_machine.times_torch_was_asked == (file != "null"), "only where there may be GPUs, and once"
    assert expected.precision("auto") == ("bf16" if expected.fast_bf16 else "fp32")
    assert expected.precision("bf16") == "bf16"


def test_a_plans_micro_batch_fits_this_machines_gpus(other_machine):
    everything = make_plan(ladder()).trunk[0].memory_bytes
    other_machine.has("nvidia0", gpus=(gpu(memory=everything.total),))  # no room is left for what must stay free
    fits = make_plan(ladder()).trunk[0]
    assert fits.micro_batch_size == fits.largest_micro_batch_size in range(1, 8)
    assert make_plan(ladder(launch={"hardware": {"memory": "80GB"}})).trunk[0].micro_batch_size == 8


def test_asking_for_too_many_gpus_stops_a_run_and_is_noted_in_the_plan(other_machine):
    other_machine.has("nvidia0", gpus=(gpu(),) * 2)
    schedule, said = ladder(launch={"devices": 4}), "launch.devices = 4: this machine has 2 GPUs"
    with pytest.raises(LaunchError, match=f"{said}$"):
        machines_of(schedule)
    note = f"The plan is for 4 devices on each machine: {said}."
    assert planned_devices(schedule) == Devices(4, "cuda", fast_bf16=True, note=note)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'Traceback' >&2; echo 'OSError: libamdhip64.so: cannot open' >&2; exit 1", "libamdhip64.so"),
        ("echo nonsense", "its answer was 'nonsense'"),
    ],
)
def test_a_failing_torch_is_asked_only_once_and_stops_a_run_with_the_reason(other_machine, script, reason):
    other_machine.has("kfd")
    other_machine.answers(f"#!/bin/sh\necho asked >> '{other_machine.asked}'; {script}\n")
    for _ in range(2):
        with pytest.raises(LaunchError, match=f"torch cannot list this machine's GPUs: .*{reason}"):
            machines_of(ladder())
    assert reason in (planned_devices(ladder()).note or "")
    assert other_machine.times_torch_was_asked == 1


def test_plan_worker_and_torch_agree_whether_this_cpu_is_fast_at_bf16(monkeypatch):
    fast = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    assert cpu_is_fast_at_bf16() == fast
    assert choose_precision("auto", torch.device("cpu")) == ("bf16" if fast else "fp32")
    assert choose_precision("fp32", torch.device("cpu")) == "fp32"
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    assert planned_devices(ladder()).precision("auto") == choose_precision("auto", torch.device("cpu"))


@pytest.mark.parametrize(
    ("flags", "expected"), [("avx512_bf16", True), ("sse amx_tile", True), ("avx512f avx512_bf16x", False)]
)
def test_a_cpus_flags_decide_whether_it_is_fast_at_bf16(tmp_path, flags, expected):
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: fpu {flags} mmx\n")
    assert cpu_is_fast_at_bf16(tmp_path / "cpuinfo") is expected


def test_a_plan_can_assume_a_gpu_that_this_machine_lacks(other_machine):
    three = planned_devices(ladder(launch={"devices": 3, "hardware": H100}))
    assert three == Devices(3, "cuda", fast_bf16=True)
    one = planned_devices(ladder(launch={"hardware": H100}))
    assert (one.per_machine, one.type, "one h100" in (one.note or "")) == (1, "cuda", True)
    other_machine.has("nvidia0", gpus=(gpu(),) * 4)
    assert planned_devices(ladder(launch={"hardware": H100})).per_machine == 4


def test_a_run_uses_the_devices_it_starts_on_and_not_the_gpu_of_its_plan(other_machine, tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "cpu_is_fast_at_bf16", lambda: False)
    everything = make_plan(ladder(launch={"devices": 2})).trunk[0].memory_bytes
    small = {"device": "h100", "memory": everything.total}  # too little for a GPU's whole share of the batch
    schedule = ladder(checkpoint={"every": 10}, launch={"devices": 2, "hardware": small})
    planned, machines = planned_devices(schedule), machines_of(schedule)
    assert (planned.type, planned.precision("auto")) == ("cuda", "bf16")
    assert machines.on_each == Devices(2, "cpu", fast_bf16=False)
    request = LadderRequest.of(schedule, "s", tmp_path, None, with_controls=False).ladder
    execution = Execution(request, tmp_path, machines, Screen(Console()))
    assert [execution.micro_batch_size(plan) for plan in execution.plans] == [4] * len(execution.plans)
    in_fp32, in_bf16 = (
        sum(stage_checkpoint_bytes(schedule, plan, precision) for plan in plan_stages(schedule))
        for precision in ("fp32", "bf16")
    )
    assert remaining_bytes(request, tmp_path / "s", machines.on_each) == in_fp32 != in_bf16


def test_a_hostfiles_devices_are_those_of_the_hosts_that_a_run_uses(tmp_path):
    hostfile = tmp_path / "hostfile"
    schedule = ladder(launch={"cluster": "hostfile", "nodes": 2, "hostfile": {"path": str(hostfile)}})
    missing = planned_devices(schedule)
    assert (missing.per_machine, str(hostfile) in (missing.note or "")) == (1, True)
    hostfile.write_text("a slots=8\nb slots=4\nc slots=2\n")
    assert planned_devices(schedule) == Devices(4, "cuda", fast_bf16=True)


def test_a_slurm_job_uses_launch_devices_and_the_plan_otherwise_assumes_one(other_machine):
    def planned(**launch) -> Devices:
        return planned_devices(ladder(launch={"cluster": "slurm"} | launch))

    assert planned(devices=8) == Devices(8, "cuda", fast_bf16=True)
    other_machine.has("nvidia0", gpus=(gpu(),) * 2)
    assert planned(devices=8, slurm={"gpus": False}).type == "cpu"
    unsaid = planned()
    assert (unsaid.per_machine, "launch.devices" in (unsaid.note or "")) == (1, True)
    assert other_machine.times_torch_was_asked == 0
