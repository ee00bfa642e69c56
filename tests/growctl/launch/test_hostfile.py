"""Training on the machines of a hostfile: rejected hostfiles, start commands, and identical results."""

import json
import signal
import stat
from pathlib import Path
from typing import Any

import pytest

from growctl.launch.hostfile import hostfile_machines, read_hostfile
from growctl.launch.local import free_port
from growctl.launch.machines import Launch, LaunchError
from growctl.schedule.launch_block import LaunchBlock
from tests.growctl.runs import (
    FAULTS,
    finish,
    growctl,
    held,
    losses,
    paused_rank,
    reached,
    run_here,
    wait_for,
    workers_of,
    write_schedule,
)
from tests.reliability.faults.sitecustomize import VARIABLE
from tests.workers import REPOSITORY


def write_hostfile(folder: Path, text: str = "one slots=1\ntwo slots=1\n") -> Path:
    path = folder / "hostfile"
    path.write_text(text)
    return path


def block(path: Path, runner: str = "pdsh", **keys: object) -> LaunchBlock:
    return LaunchBlock.model_validate({"cluster": "hostfile", "hostfile": {"path": str(path), "runner": runner}} | keys)


def launched(folder: Path, nodes: int = 2, **keys: Any) -> Launch:
    """How a stage starts on two machines with eight devices each, or on the first of them."""
    machines = hostfile_machines(block(write_hostfile(folder, "one slots=8\ntwo slots=8\n"), **keys), 2)
    return machines.launch(folder / "stage/spec.json", nodes=nodes, attempt=7)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("one slots=1\ntwo\n", "line 2: 'two'"),
        ("one slots=0\n", "line 1: 'one slots=0'"),
        ("one slots=1\n\none slots=2\n", "line 3: 'one slots=2'"),
        ("$(reboot) slots=1\n", "line 1: '$(reboot) slots=1'"),
        ("-oProxyCommand=x slots=1\n", "line 1"),
    ],
)
def test_an_invalid_line_is_reported_with_file_and_number(tmp_path, text, place):
    path = write_hostfile(tmp_path, text)
    with pytest.raises(LaunchError) as error:
        read_hostfile(path)
    assert str(error.value).startswith(f"{path}, {place}")
    assert "write a host's name, which no other line has, and its number of devices" in str(error.value)


@pytest.mark.parametrize(
    ("keys", "nodes", "message"),
    [
        ({}, 4, "launch.nodes = 4: .*hostfile has 3 hosts"),
        ({"devices": 5}, 2, "launch.devices = 5: host two in .*hostfile has slots=4"),
    ],
)
def test_hosts_and_slots_are_enough_and_auto_takes_the_fewest_slots(tmp_path, keys, nodes, message):
    path = write_hostfile(tmp_path, "# ours\n\none slots=8\n two\tslots=4  # old\nthree slots=2\n")
    with pytest.raises(LaunchError, match=message):
        hostfile_machines(block(path, **keys), nodes)
    assert [hostfile_machines(block(path), nodes).devices for nodes in (1, 2, 3)] == [8, 4, 2]
    assert hostfile_machines(block(path, devices=4), 2).devices == 4


def test_a_launch_names_only_its_stages_machines_and_devices_and_its_variables_pass_no_shell(tmp_path, monkeypatch):
    given = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "AVX2", "OMP_NUM_THREADS": "7"}
    for name, value in {**given, "AWS_SECRET_ACCESS_KEY": "secret"}.items():
        monkeypatch.setenv(name, value)
    added = {"OMP_NUM_THREADS": "3", "NCCL_IB_HCA": '^"mlx5"; $(x)'}
    launch = launched(tmp_path, nodes=1, devices=4, environment=added)
    assert launch.files[tmp_path / "stage/hostfile"] == "one slots=4\n"
    [content] = (content for path, content in launch.files.items() if path.name == "environment.json")
    workers = json.loads(content)
    assert workers.items() >= (given | added).items(), "what changes rounding, unless launch.environment overrides it"
    assert "AWS_SECRET_ACCESS_KEY" not in workers
    assert "mlx5" not in " ".join(launch.command)
    assert (launch.directory, launch.lifeline) == (tmp_path / "stage", tmp_path / "stage/.lifeline.7")
    assert launch.command[launch.command.index("--master_addr") + 1] == "one"


def test_open_mpi_does_not_bind_a_rank_to_one_core(tmp_path):
    for runner in ("pdsh", "openmpi"):
        command = launched(tmp_path, runner=runner).command
        assert command[command.index("--launcher") + 1] == runner
        assert ("--launcher_args=--bind-to none" in command) == (runner == "openmpi")


def test_ssh_notices_a_machine_that_no_longer_answers_after_the_users_own_options(tmp_path, monkeypatch):
    monkeypatch.setenv("PDSH_SSH_ARGS_APPEND", "-p 2222")
    assert launched(tmp_path).environment["PDSH_SSH_ARGS_APPEND"].startswith("-p 2222 -oServerAliveInterval=")


@pytest.mark.parametrize(
    ("runner", "place", "message"),
    [
        ("openmpi", "runs", "with runner 'openmpi': needs mpirun and ompi_info on PATH: install"),
        ("pdsh", "100%n", "100%n': goes through shells on other machines"),
    ],
)
def test_what_cannot_start_there_is_refused_before_anything_is_written(tmp_path, monkeypatch, runner, place, message):
    monkeypatch.setenv("PATH", str(tmp_path))
    for program in ("ssh", "pdsh"):
        (tmp_path / program).touch(stat.S_IRWXU)
    hostfile = ["launch.cluster=hostfile", f"launch.hostfile.path={write_hostfile(tmp_path)}", "launch.nodes=2"]
    options = [*hostfile, f"launch.hostfile.runner={runner}", "--runs-dir", tmp_path / place]
    _, err = run_here("run", write_schedule(tmp_path), *options, expect=2)
    assert message in err
    assert not (tmp_path / place).exists()


def test_two_machines_compute_the_bits_of_one_and_end_with_the_runner(two_ranks, runs_dir, tmp_path, pdsh, monkeypatch):
    text = two_ranks[0].read_text()
    schedule = write_schedule(tmp_path, "".join(line for line in text.splitlines(True) if "name: large" not in line))
    monkeypatch.setenv("PYTHONSAFEPATH", "1")  # as for the script growctl, but not for python -m
    (tmp_path / "model.py").write_text("raise SystemExit('a file in the working directory is not growctl')")
    environment = "{GLOO_SOCKET_IFNAME: lo, OMP_NUM_THREADS: '1', MARK: 'a \"b\" $c'}"
    launch = [
        *("launch.cluster=hostfile", f"launch.hostfile.path={write_hostfile(tmp_path)}", "launch.nodes=2"),
        *("launch.hostfile.master_address=127.0.0.1", f"launch.hostfile.master_port={free_port()}"),
        *(f"launch.environment={environment}", f"launch.environment.PYTHONPATH='{FAULTS}:{REPOSITORY}'"),
        f"launch.environment.{VARIABLE}='{paused_rank(tmp_path / '.marks', '0-small', steps=16)}'",
        *("--runs-dir", runs_dir),
    ]
    process = growctl("run", schedule, *launch, cwd=tmp_path)
    small = runs_dir / "tiny/stages/0-small"
    wait_for(reached(small / "metrics.jsonl", "train", 1), process)
    trainers = [pid for pid in workers_of(runs_dir) if b'MARK=a "b" $c' in environ(pid)]
    assert len(trainers) == 2
    assert {b"CROSS_RANK=0", b"CROSS_RANK=1"} == {w for pid in trainers for w in environ(pid) if b"CROSS_RANK" in w}
    with held(trainers, small):
        process.send_signal(signal.SIGTERM)
    _, err = finish(process, expect=143)
    assert "terminated; run the same command again to resume" in err
    assert workers_of(runs_dir) == []
    assert list(small.glob("step_*"))
    assert losses(two_ranks[1] / "tiny").items() >= losses(runs_dir / "tiny").items() > {}.items()
    assert ("0-small", 15, "train") in losses(runs_dir / "tiny")
    assert "two: " in (small / "log.txt").read_text()
    assert not list(small.glob(".lifeline*"))


def environ(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
