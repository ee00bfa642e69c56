"""`plan`, `run` and `--dry-run` agree on devices, and query torch only when necessary.

A machine with GPUs is faked: device files in a folder, and a Python that answers for the torch of a worker.
"""

import json
import os
import subprocess
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
from growctl.launch import devices, resolve
from growctl.launch.devices import GPU_FILES, MOST_CPU_RANKS, gpus_here, local_devices
from growctl.launch.local import Local
from growctl.launch.machines import Devices, LaunchError
from growctl.launch.resolve import machines_of, planned_devices
from growctl.run.requests import LadderRequest, remaining_bytes
from growctl.run.screen import Screen
from growctl.run.stage_run import Execution
from growctl.schedule.blocks import Schedule
from stages.engine.devices import cpu_is_fast_at_bf16, resolve_precision, visible_gpus
from stages.engine.engine import choose_precision
from stages.probe.machine import describe
from stages.probe.records import DeviceFacts, MachineFacts
from tests.growctl.ladders import ladder
from tests.workers import REPOSITORY

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
        self.answers(
            PYTHON.format(
                python=sys.executable,
                asked=str(self.asked),
                found=json.dumps([each.model_dump() for each in gpus]),
                variables=("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
                if "kfd" in files
                else ("CUDA_VISIBLE_DEVICES",),
            )
        )
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
    planned = planned_devices(schedule)
    on_gpus = planned.type == "cuda"
    machines = machines_of(schedule)
    assert isinstance(machines, Local)
    assert (machines.devices, machines.on_each.type == "cuda") == (planned.per_machine, on_gpus)
    assert machines.on_each == planned
    assert _devices_here(schedule) == planned
    plan = make_plan(schedule)
    assert plan.devices == planned
    assert plan.device_memory_bytes == planned.memory_bytes
    text = dry_run_text(LadderRequest.of(schedule, "s", folder / "runs", None, with_controls=False))
    assert f"start_ranks {planned.per_machine} " in text
    assert ("DS_ACCELERATOR=cpu" in text) is not on_gpus
    return planned


# Machines without GPUs


def test_without_gpus_there_is_one_rank_per_core_up_to_a_divisor_of_the_batch(other_machine, monkeypatch):
    for cores, batch_size, expected in [(2, 8, 2), (2, 9, 1), (6, 8, 4), (64, 64, MOST_CPU_RANKS), (1, 8, 1)]:
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: set(range(cores)))
        found = local_devices("auto", batch_size)
        assert (found.per_machine, found.type) == (expected, "cpu")
    assert local_devices(3, 8).per_machine == 3


def test_without_gpus_all_commands_use_the_cpu_and_do_not_ask_torch(other_machine, tmp_path):
    assert everyones_answers(ladder(), tmp_path) == Devices(2, "cpu", cpu_is_fast_at_bf16())
    assert other_machine.times_torch_was_asked == 0


@given(st.integers(1, 4096), st.sampled_from([1, 2, 3]))
def test_ranks_on_cpus_divide_the_micro_batches_of_a_step(batch_size: int, micro: int) -> None:
    training = {"sequence_length": 16, "batch_size": batch_size * micro}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DS_ACCELERATOR", "cpu")
        patch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
        found = planned_devices(ladder(training=training, launch={"micro_batch_size": micro}))
        assert found == local_devices("auto", batch_size)
    assert batch_size % found.per_machine == 0


def test_gpus_are_ignored_if_deepspeed_is_set_to_the_cpu(other_machine, tmp_path, monkeypatch):
    other_machine.has("nvidia0", gpus=(gpu(),))
    schedule = ladder(launch={"environment": {"DS_ACCELERATOR": "cpu"}})
    assert planned_devices(schedule).type == "cpu"
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    assert planned_devices(ladder()).type == "cpu"
    assert visible_gpus() == []
    assert [device.kind for device in describe(with_deepspeed=False).devices] == ["cpu"]


def test_a_machine_without_gpus_counts_its_devices_without_torch():
    if any(path for pattern in GPU_FILES for path in Path("/dev").glob(pattern)):
        pytest.skip("this machine has device files of GPUs")
    count = "from growctl.launch.devices import local_devices; local_devices(2, 4)"
    code = f"import sys; {count}; print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    assert result.stdout == "False\n"


# Machines with GPUs


def test_on_an_amd_machine_all_commands_count_its_gpus(other_machine, tmp_path, monkeypatch):
    other_machine.has("kfd", gpus=(gpu("MI300X", "9.4", memory=192 * GIB),) * 4)
    assert everyones_answers(ladder(), tmp_path) == Devices(4, "cuda", fast_bf16=True, memory_bytes=192 * GIB)
    assert other_machine.times_torch_was_asked == 1  # and its answer is kept
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "0,2")
    assert everyones_answers(ladder(), tmp_path).per_machine == 2
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "1")
    monkeypatch.delenv("HIP_VISIBLE_DEVICES")
    assert everyones_answers(ladder(), tmp_path).per_machine == 1


@pytest.mark.parametrize("file", ["nvidia0", "dxg"])
def test_only_visible_gpus_count(other_machine, tmp_path, monkeypatch, file):
    other_machine.has(file, gpus=(gpu(), V100, gpu(), gpu()))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    assert everyones_answers(ladder(), tmp_path) == Devices(2, "cuda", fast_bf16=True, memory_bytes=80 * GIB)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert everyones_answers(ladder(), tmp_path).type == "cpu"


def test_gpus_hidden_by_the_workers_environment_do_not_count(other_machine, tmp_path):
    other_machine.has("nvidia0", gpus=(gpu(), gpu()))
    schedule = ladder(launch={"environment": {"CUDA_VISIBLE_DEVICES": "1"}})
    assert everyones_answers(schedule, tmp_path).per_machine == 1


def test_gpus_that_are_slow_at_bf16_train_in_float32_and_are_planned_so(other_machine, tmp_path):
    other_machine.has("nvidia0", gpus=(V100, V100))
    found = everyones_answers(ladder(), tmp_path)
    assert (found.precision("auto"), found.precision("bf16")) == ("fp32", "bf16")
    plan = make_plan(ladder())
    assert plan.device_memory_bytes == 32 * GIB


def test_a_plans_micro_batch_fits_this_machines_gpus(other_machine):
    everything = make_plan(ladder()).trunk[0].memory_bytes
    other_machine.has("nvidia0", gpus=(gpu(memory=everything.total),))  # no room is left for what must stay free
    fits = make_plan(ladder()).trunk[0]
    assert fits.micro_batch_size is not None
    assert fits.largest_micro_batch_size is not None
    assert 1 <= fits.micro_batch_size == fits.largest_micro_batch_size < 8
    said = make_plan(ladder(launch={"hardware": {"memory": "80GB"}})).trunk[0]
    assert said.micro_batch_size == 8


def test_only_the_used_gpus_set_precision_and_memory(other_machine, tmp_path):
    other_machine.has("nvidia0", gpus=(gpu(), gpu(), V100))
    assert everyones_answers(ladder(launch={"devices": 2}), tmp_path).memory_bytes == 80 * GIB
    assert local_devices("auto", 8) == Devices(3, "cuda", fast_bf16=False, memory_bytes=32 * GIB)


def test_the_message_about_too_few_gpus_uses_the_singular_for_one(other_machine):
    other_machine.has("nvidia0", gpus=(gpu(),))
    with pytest.raises(LaunchError, match=r"launch\.devices = 4: this machine has 1 GPU$"):
        local_devices(4, 8)


def test_asking_for_too_many_gpus_stops_a_run_and_is_noted_in_the_plan(other_machine):
    other_machine.has("nvidia0", gpus=(gpu(), gpu()))
    schedule = ladder(launch={"devices": 4})
    with pytest.raises(LaunchError, match=r"launch\.devices = 4: this machine has 2 GPUs"):
        machines_of(schedule)
    planned = planned_devices(schedule)
    assert (planned.per_machine, planned.type) == (4, "cuda")
    assert planned.note == "The plan is for 4 devices on each machine: launch.devices = 4: this machine has 2 GPUs."


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (
            "#!/bin/sh\necho 'Traceback' >&2; echo 'OSError: libamdhip64.so: cannot open' >&2; exit 1\n",
            "libamdhip64.so",
        ),
        ("#!/bin/sh\nexit 3\n", "exit code 3"),
        ("#!/bin/sh\necho nonsense\n", "its answer was 'nonsense'"),
    ],
)
def test_a_failing_torch_stops_a_run_with_the_reason(other_machine, script, reason):
    other_machine.has("kfd")
    other_machine.answers(script)
    with pytest.raises(LaunchError, match=f"torch cannot list this machine's GPUs: .*{reason}"):
        machines_of(ladder())
    assert reason in (planned_devices(ladder()).note or "")


def test_a_failing_torch_is_asked_only_once(other_machine):
    other_machine.has("kfd")
    other_machine.answers(f"#!/bin/sh\necho asked >> '{other_machine.asked}'; exit 3\n")
    for _ in range(3):
        with pytest.raises(LaunchError, match="exit code 3"):
            gpus_here()
    assert other_machine.times_torch_was_asked == 1


def test_a_plan_ends_the_reason_that_it_notes_with_one_full_stop(monkeypatch):
    def fail(schedule: Schedule) -> Devices:
        raise LaunchError("torch is broken.")

    monkeypatch.setattr(resolve, "schedule_devices_here", fail)
    assert planned_devices(ladder()).note == "The plan is for 1 device on each machine: torch is broken."


@pytest.mark.slow
def test_the_probes_output_is_read_back():
    result = subprocess.run(
        [sys.executable, "-m", "stages.probe.machine"],
        capture_output=True,
        text=True,
        check=True,
        cwd=REPOSITORY,
    )
    told = MachineFacts.model_validate_json(result.stdout.splitlines()[-1])
    assert len(told.devices) == max(1, torch.cuda.device_count())
    assert len(gpus_here()) == torch.cuda.device_count()


# Precision


def test_auto_precision_is_bf16_if_the_device_is_fast_at_it():
    assert [resolve_precision("auto", fast) for fast in (True, False)] == ["bf16", "fp32"]
    assert {resolve_precision("fp32", fast) for fast in (True, False)} == {"fp32"}
    assert {resolve_precision("bf16", fast) for fast in (True, False)} == {"bf16"}


def test_plan_worker_and_torch_agree_whether_this_cpu_is_fast_at_bf16(monkeypatch):
    fast = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    assert cpu_is_fast_at_bf16() == fast
    assert choose_precision("auto", torch.device("cpu")) == ("bf16" if fast else "fp32")
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    assert planned_devices(ladder()).precision("auto") == choose_precision("auto", torch.device("cpu"))


@pytest.mark.parametrize(
    ("flags", "expected"),
    [("avx512_bf16", True), ("sse amx_tile", True), ("avx512f avx512_bf16x", False), (None, False)],
)
def test_a_cpus_flags_decide_whether_it_is_fast_at_bf16(tmp_path, flags, expected):
    if flags:
        (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: fpu {flags} mmx\n")
    assert cpu_is_fast_at_bf16(tmp_path / "cpuinfo") is expected


# Other machines


def test_a_plan_can_assume_a_gpu_that_this_machine_lacks(other_machine):
    three = planned_devices(ladder(launch={"devices": 3, "hardware": H100}))
    assert (three.per_machine, three.type, three.note) == (3, "cuda", None)
    one = planned_devices(ladder(launch={"hardware": H100}))
    assert (one.per_machine, one.type) == (1, "cuda")
    assert "one h100" in (one.note or "")
    other_machine.has("nvidia0", gpus=(gpu(),) * 4)
    assert planned_devices(ladder(launch={"hardware": H100})).per_machine == 4


def test_a_run_uses_the_devices_it_starts_on_and_not_the_gpu_that_its_plan_assumes(other_machine, tmp_path):
    everything = make_plan(ladder(launch={"devices": 2})).trunk[0].memory_bytes
    small = {"device": "h100", "memory": everything.total}  # too little for a GPU's whole share of the batch
    schedule = ladder(launch={"devices": 2, "hardware": small})
    machines = machines_of(schedule)
    assert planned_devices(schedule).type == "cuda"
    assert machines.on_each == Devices(2, "cpu", cpu_is_fast_at_bf16())
    request = LadderRequest.of(schedule, "s", tmp_path, None, with_controls=False).ladder
    execution = Execution(request, tmp_path, machines, Screen(Console()))
    assert [execution.micro_batch_size(plan) for plan in execution.plans] == [4] * len(execution.plans)


def test_a_run_needs_the_disk_space_of_the_precision_it_trains_in(other_machine, tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "cpu_is_fast_at_bf16", lambda: False)
    schedule = ladder(checkpoint={"every": 10}, launch={"hardware": H100})
    assert planned_devices(schedule).precision("auto") == "bf16"
    found = machines_of(schedule).on_each
    assert found.precision("auto") == "fp32"
    request = LadderRequest.of(schedule, "s", tmp_path, None, with_controls=False).ladder
    in_fp32, in_bf16 = (
        sum(stage_checkpoint_bytes(schedule, plan, precision) for plan in plan_stages(schedule))
        for precision in ("fp32", "bf16")
    )
    assert remaining_bytes(request, tmp_path / "s", found) == in_fp32 != in_bf16


def test_a_hostfiles_devices_are_those_of_the_hosts_that_a_run_uses(tmp_path):
    hostfile = tmp_path / "hostfile"
    hosts = {"cluster": "hostfile", "nodes": 2, "hostfile": {"path": str(hostfile)}}
    missing = planned_devices(ladder(launch=hosts))
    assert missing.per_machine == 1
    assert missing.note.startswith("The plan is for 1 device on each machine: ")
    assert str(hostfile) in (missing.note or "")
    hostfile.write_text("a slots=8\nb slots=4\nc slots=2\n")
    assert planned_devices(ladder(launch=hosts)) == Devices(4, "cuda", fast_bf16=True)
    assert machines_of(ladder(launch=hosts)).devices == 4


def test_a_slurm_job_uses_launch_devices_and_the_plan_otherwise_assumes_one(other_machine):
    def planned(**launch) -> Devices:
        return planned_devices(ladder(launch={"cluster": "slurm"} | launch))

    assert planned(devices=8) == Devices(8, "cuda", fast_bf16=True)
    other_machine.has("nvidia0", gpus=(gpu(),) * 2)
    assert planned(devices=8, slurm={"gpus": False}).type == "cpu"
    unsaid = planned()
    assert unsaid.per_machine == 1
    assert "launch.devices" in (unsaid.note or "")
    assert other_machine.times_torch_was_asked == 0
