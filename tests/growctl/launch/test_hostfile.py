"""Training on the machines of a hostfile: rejected hostfiles, start commands, and identical results."""

import json
import signal
import stat
from pathlib import Path

import pytest

from growctl.launch.hostfile import hostfile_machines, read_hostfile
from growctl.launch.local import free_port
from growctl.launch.machines import LaunchError
from growctl.schedule.launch_block import LaunchBlock
from tests.growctl.runs import (
    FAULTS,
    final_hashes,
    finish,
    growctl,
    held,
    losses,
    paused_rank,
    reached,
    run_here,
    wait_until,
    workers_of,
    write_schedule,
)
from tests.reliability.faults.sitecustomize import VARIABLE
from tests.workers import REPOSITORY

OUR_LINE = "write a host's name, which no other line has, and its number of devices"


def write_hostfile(folder: Path, text: str = "one slots=1\ntwo slots=1\n") -> Path:
    path = folder / "hostfile"
    path.write_text(text)
    return path


def block(path: Path, **keys: object) -> LaunchBlock:
    return LaunchBlock.model_validate({"cluster": "hostfile", "hostfile": {"path": str(path)}} | keys)


def test_hosts_are_read_in_file_order_without_comments(tmp_path):
    path = write_hostfile(tmp_path, "# ours\n\nworker-2 slots=8\n  10.0.0.7\tslots=4   # the old one\n")
    assert list(read_hostfile(path).items()) == [("worker-2", 8), ("10.0.0.7", 4)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("one slots=1\ntwo\n", f"line 2: 'two': {OUR_LINE}"),
        ("one slots=many\n", f"line 1: 'one slots=many': {OUR_LINE}"),
        ("one slots=1 two slots=2\n", OUR_LINE),
        ("one slots=0\n", f"line 1: 'one slots=0': {OUR_LINE}"),
        ("one slots=1\n\none slots=2\n", f"line 3: 'one slots=2': {OUR_LINE}"),
        ("$(reboot) slots=1\n", f"line 1: '$(reboot) slots=1': {OUR_LINE}"),
        ("a;reboot slots=1\n", OUR_LINE),
        ("-oProxyCommand=x slots=1\n", OUR_LINE),
        ("one,two slots=1\n", OUR_LINE),
        ("one[1-9] slots=1\n", OUR_LINE),
    ],
)
def test_an_invalid_line_is_reported_with_file_and_number(tmp_path, text, message):
    path = write_hostfile(tmp_path, text)
    with pytest.raises(LaunchError) as error:
        read_hostfile(path)
    assert str(error.value).startswith(str(path))
    assert message in str(error.value)


def test_a_missing_hostfile_is_reported_with_the_key_and_an_example(tmp_path):
    with pytest.raises(LaunchError) as error:
        read_hostfile(tmp_path / "none")
    assert str(error.value).startswith(f"launch.hostfile.path = '{tmp_path}/none': [Errno 2] No such file")
    assert str(error.value).endswith("as in: worker-1 slots=8, or set launch.hostfile.path to your hostfile")


@pytest.mark.parametrize(
    ("path", "reason"), [("a\0b", "embedded null byte"), ("~no-such-user/hosts", "Could not determine home directory")]
)
def test_an_invalid_path_is_refused_with_its_key(path, reason):
    with pytest.raises(LaunchError, match=f"launch.hostfile.path = .*: {reason}"):
        hostfile_machines(block(Path(path)), 1)


@pytest.mark.parametrize(
    ("keys", "nodes", "message"),
    [
        ({}, 3, "launch.nodes = 3: .*hostfile has 2 hosts"),
        ({"devices": 5}, 2, "launch.devices = 5: host two in .*hostfile has slots=4"),
    ],
)
def test_more_hosts_or_slots_than_the_file_has_are_refused(tmp_path, keys, nodes, message):
    path = write_hostfile(tmp_path, "one slots=8\ntwo slots=4\n")
    with pytest.raises(LaunchError, match=message):
        hostfile_machines(block(path, **keys), nodes)


def test_devices_auto_is_the_smallest_number_of_slots_among_the_used_hosts(tmp_path):
    path = write_hostfile(tmp_path, "one slots=8\ntwo slots=4\nthree slots=2\n")
    assert [hostfile_machines(block(path), nodes).devices for nodes in (1, 2, 3)] == [8, 4, 2]
    assert hostfile_machines(block(path, devices=3), 2).devices == 3


def test_a_launch_names_only_the_machines_and_devices_of_its_stage(tmp_path):
    path = write_hostfile(tmp_path, "one slots=8\ntwo slots=8\n")
    launch = hostfile_machines(block(path, devices=4, environment={"NCCL_IB_HCA": '^"mlx5"; $(x)'}), 2).launch(
        tmp_path / "stage/spec.json", nodes=1, attempt=7
    )
    files = {path.name: content for path, content in launch.files.items()}
    assert files["hostfile"] == "one slots=4\n"
    assert json.loads(files["environment.json"])["NCCL_IB_HCA"] == '^"mlx5"; $(x)'
    assert "mlx5" not in " ".join(launch.command)
    assert launch.directory == tmp_path / "stage"
    assert launch.lifeline == tmp_path / "stage/.lifeline.7"
    assert launch.command[launch.command.index("--master_addr") + 1] == "one"


def test_open_mpi_does_not_bind_a_rank_to_one_core(tmp_path):
    path = write_hostfile(tmp_path)
    launch = hostfile_machines(block(path, hostfile={"path": str(path), "runner": "openmpi"}), 2).launch(
        tmp_path / "spec.json", nodes=2, attempt=1
    )
    assert launch.command[launch.command.index("--launcher") + 1] == "openmpi"
    assert "--launcher_args=--bind-to none" in launch.command


def test_ssh_notices_a_machine_that_no_longer_answers(tmp_path, monkeypatch):
    hostfile = block(write_hostfile(tmp_path))
    launch = hostfile_machines(hostfile, 2).launch(tmp_path / "spec.json", nodes=2, attempt=1)
    alive = launch.environment["PDSH_SSH_ARGS_APPEND"]
    assert "-oServerAliveInterval=" in alive
    monkeypatch.setenv("PDSH_SSH_ARGS_APPEND", "-p 2222")
    launch = hostfile_machines(hostfile, 2).launch(tmp_path / "spec.json", nodes=2, attempt=1)
    assert launch.environment["PDSH_SSH_ARGS_APPEND"] == f"-p 2222 {alive}", "the user's own options come first"


def test_every_machine_gets_the_variables_that_change_rounding(tmp_path, monkeypatch):
    given = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "AVX2", "OMP_NUM_THREADS": "7"}
    for name, value in {**given, "AWS_SECRET_ACCESS_KEY": "secret"}.items():
        monkeypatch.setenv(name, value)
    hostfile = block(write_hostfile(tmp_path), environment={"OMP_NUM_THREADS": "3"})
    launch = hostfile_machines(hostfile, 2).launch(tmp_path / "spec.json", nodes=2, attempt=1)
    workers = json.loads(launch.files[tmp_path / "environment.json"])
    assert workers.items() >= (given | {"OMP_NUM_THREADS": "3"}).items(), "launch.environment overrides"
    assert "AWS_SECRET_ACCESS_KEY" not in workers


@pytest.mark.parametrize(("runner", "missing"), [("pdsh", "pdsh"), ("openmpi", "mpirun and ompi_info")])
def test_a_missing_program_is_reported_before_anything_is_written(tmp_path, monkeypatch, runner, missing):
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "ssh").touch(stat.S_IRWXU)
    hostfile = ["launch.cluster=hostfile", f"launch.hostfile.path={write_hostfile(tmp_path)}"]
    options = [*hostfile, "launch.nodes=2", f"launch.hostfile.runner={runner}", "--runs-dir", tmp_path / "runs"]
    _, err = run_here("run", write_schedule(tmp_path), *options, expect=2)
    assert f"with runner '{runner}': needs {missing} on PATH: install" in err
    assert not (tmp_path / "runs").exists()


def test_a_runs_directory_with_shell_characters_is_refused(tmp_path, pdsh):
    hostfile = ["launch.cluster=hostfile", f"launch.hostfile.path={write_hostfile(tmp_path)}", "launch.nodes=2"]
    for name in ("with blank", "a;b", "100%n"):
        _, err = run_here("run", write_schedule(tmp_path), *hostfile, "--runs-dir", tmp_path / name, expect=2)
        assert f"{name}': goes through shells on other machines" in err
        assert not (tmp_path / name).exists()


def test_two_machines_compute_the_same_bits_as_one_and_end_with_their_runner(
    two_ranks, runs_dir, tmp_path, pdsh, monkeypatch
):
    text = two_ranks[0].read_text()
    schedule = write_schedule(tmp_path, "".join(line for line in text.splitlines(True) if "name: large" not in line))
    expected = two_ranks[1] / "tiny"
    monkeypatch.setenv("PYTHONSAFEPATH", "1")  # as for the script growctl, but not for python -m
    (tmp_path / "model.py").write_text("raise SystemExit('a file in the working directory is not growctl')")
    environment = "{GLOO_SOCKET_IFNAME: lo, OMP_NUM_THREADS: '1', MARK: 'a \"b\" $c'}"
    launch = [
        *("launch.cluster=hostfile", f"launch.hostfile.path={write_hostfile(tmp_path)}", "launch.nodes=2"),
        *("launch.hostfile.master_address=127.0.0.1", f"launch.hostfile.master_port={free_port()}"),
        *(f"launch.environment={environment}", f"launch.environment.PYTHONPATH='{FAULTS}:{REPOSITORY}'"),
        f"launch.environment.{VARIABLE}='{paused_rank(tmp_path / '.marks', '0-small')}'",
        *("--runs-dir", runs_dir),
    ]
    process = growctl("run", schedule, *launch, cwd=tmp_path)
    small = runs_dir / "tiny/stages/0-small"
    wait_until(reached(small / "metrics.jsonl", "train", 1), process)
    trainers = [pid for pid in workers_of(runs_dir) if b'MARK=a "b" $c' in environ(pid)]
    assert len(trainers) == 2
    assert {b"CROSS_RANK=0", b"CROSS_RANK=1"} == {w for pid in trainers for w in environ(pid) if b"CROSS_RANK" in w}
    with held(trainers, small):
        process.send_signal(signal.SIGTERM)
    _, err = finish(process, expect=143)
    assert "terminated; run the same command again to resume" in err
    assert workers_of(runs_dir) == []
    assert not (small / "final").exists()

    process = growctl("run", schedule, *launch, cwd=tmp_path)
    out, _ = finish(process)
    assert "stage small: resuming from step_" in out
    assert final_hashes(runs_dir / "tiny").items() <= final_hashes(expected).items()
    assert losses(runs_dir / "tiny").items() <= losses(expected).items()
    assert ("0-small", 30, "final") in losses(runs_dir / "tiny")
    assert "two: " in (small / "log.txt").read_text()
    assert not list(small.glob(".lifeline*"))


def environ(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
