"""Workers on this machine: devices, threads and the launcher's command."""

import os
import signal
import socket
import sys
from pathlib import Path

import pytest
import torch

from growctl.ladder.load import load_schedule
from growctl.launch.local import FIRST_PORT, KEPT_MEMORY, NUM_PORTS, Local, local_environment, local_launch
from growctl.launch.machines import Devices, Launch, LaunchError
from growctl.launch.resolve import machines_of
from growctl.launch.slurm import SlurmMachines
from growctl.launch.workers import Workers
from growctl.schedule.launch_block import LaunchBlock
from stages.process.lifeline import VARIABLE
from tests.growctl.runs import wait_for, write_schedule
from tests.workers import REPOSITORY


def test_cpu_workers_share_the_cores_on_the_loopback_and_keep_freed_memory_unless_the_user_differs(monkeypatch):
    for name in ("OMP_NUM_THREADS", *KEPT_MEMORY):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    expected = {"OMP_NUM_THREADS": "3", "GLOO_SOCKET_IFNAME": "lo", "PYTHONSAFEPATH": "1"} | KEPT_MEMORY
    assert expected.items() <= local_environment(2, gpus=False).items()
    assert not KEPT_MEMORY.keys() & local_environment(1, gpus=True).keys()
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "100000")
    assert local_environment(1, gpus=False)["MALLOC_TRIM_THRESHOLD_"] == "100000"


def test_the_schedules_environment_overrides_all_others(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    devices, added = Devices(2, "cpu", fast_bf16=False), {"OMP_NUM_THREADS": "3", "NEW": "$(x)"}
    launch = Local(devices, environment=added).launch(Path("spec.json"), nodes=1, attempt=1)
    assert (launch.environment["OMP_NUM_THREADS"], launch.environment["NEW"]) == ("3", "$(x)")
    assert "OMP_NUM_THREADS" not in Local(devices).launch(Path("spec.json"), nodes=1, attempt=1).environment


def test_a_local_run_cannot_use_two_machines(tmp_path):
    schedule = load_schedule(str(write_schedule(tmp_path)), ["launch.nodes=[1,2]"])
    with pytest.raises(LaunchError, match=r"launch\.nodes = 2: launch\.cluster = 'local' is one machine"):
        machines_of(schedule)


def test_workers_on_other_machines_are_ended_before_their_launcher(tmp_path):
    alive = tmp_path / ".lifeline.1"
    (tmp_path / ".lifeline.0").touch()
    script = f"trap 'echo told' TERM; echo started; while [ -e {alive} ]; do sleep 0.05; done; echo ended; exit 5"
    launch = Launch(["sh", "-c", script], {}, lifeline=alive, files={tmp_path / "note": "text"})
    with Workers(launch, tmp_path / "log") as workers:
        wait_for(lambda: (tmp_path / "log").read_text() == "started\n")
        assert workers.running()
        assert not (tmp_path / ".lifeline.0").exists()
        assert (tmp_path / "note").read_text() == "text"
    assert (tmp_path / "log").read_text() == "started\nended\n"
    assert workers.wait() == 5


def test_a_jobs_workers_meet_on_its_first_host_at_a_port_chosen_by_its_id(monkeypatch):
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "slurm")
    monkeypatch.setenv("SLURM_JOB_ID", "4000123")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "gpu[07-09,12],big1")
    job = SlurmMachines.of(LaunchBlock.model_validate({"cluster": "slurm", "devices": 2}))
    launch = job.launch(Path("/runs/stage/spec.json"), nodes=3, attempt=2)
    assert (launch.environment["MASTER_ADDR"], launch.environment["MASTER_PORT"]) == ("gpu07", "25123")
    assert launch.environment[VARIABLE] == "/runs/stage/.lifeline.2"
    assert {"--nodes=3", "--ntasks=6", "--ntasks-per-node=2", "--kill-on-bad-exit=1"} < set(launch.command)


SRUN = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")
MPIRUN = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK")
TORCH = ("RANK", "WORLD_SIZE", "LOCAL_RANK")


@pytest.mark.parametrize("launchers", [(SRUN,), (MPIRUN, SRUN), (TORCH, SRUN)])  # mpirun may run inside a job
def test_a_rank_reads_its_position_from_any_launchers_variables(monkeypatch, launchers):
    import deepspeed

    from stages.engine.rank_process import start_distributed

    for name in TORCH:
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    places = [("5", "8", "1"), ("0", "1", "0")]
    for names, values in zip(launchers, places, strict=False):
        for name, value in zip(names, values, strict=True):
            monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(deepspeed, "init_distributed", lambda **_: None)
    start_distributed()
    assert tuple(os.environ[name] for name in TORCH) == places[0]


def test_ranks_meet_on_a_free_port_that_is_not_ephemeral(monkeypatch):
    def port() -> int:
        return int(local_launch(Path("spec.json"), 1, gpus=False).command[4])

    first = port()
    assert FIRST_PORT <= first < FIRST_PORT + NUM_PORTS
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first))
        drawn = iter([first - FIRST_PORT, 7, 8, 9])
        monkeypatch.setattr("secrets.randbelow", lambda number: next(drawn))
        assert port() in {FIRST_PORT + 7, FIRST_PORT + 8, FIRST_PORT + 9}


@pytest.mark.slow
def test_a_stuck_rank_whose_launcher_was_killed_ends_too(tmp_path):
    rank = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"  # it has no lifeline
    command = [sys.executable, "-m", "growctl.launch.start_ranks", "1", "29998", "-c", rank]
    environment = {"PYTHONPATH": str(REPOSITORY), VARIABLE: "stdin"}
    with Workers(Launch(command, environment), tmp_path / "log") as workers:
        wait_for(lambda: len((tmp_path / "log").read_text().splitlines()) == 2)
        pid = int((tmp_path / "log").read_text().splitlines()[1])
        os.kill(workers._process.pid, signal.SIGKILL)
        wait_for(lambda: not workers.running())
        assert Path(f"/proc/{pid}").exists()
    wait_for(lambda: not Path(f"/proc/{pid}").exists())
