"""Ranks of a machine get their rank and address, and none outlives the others."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from growctl.launch.start_ranks import STARTED
from stages.process.lifeline import STDIN, VARIABLE
from tests.growctl.runs import stat_of, wait_for
from tests.workers import HANG_SECONDS, REPOSITORY

RANK = """
import os, signal, sys, time
from pathlib import Path
rank = int(os.environ["RANK"])
def pid_of(rank):
    file = Path(sys.argv[1], f"pid-{rank}")
    return file.read_text() if file.exists() else ""
def gone(rank):
    return not Path("/proc", pid_of(rank)).exists()
def wait_for(condition):
    while not condition():
        time.sleep(0.01)
def stay():
    time.sleep(3600)
Path(sys.argv[1], f"pid-{rank}").write_text(str(os.getpid()))
wait_for(lambda: all(pid_of(other) for other in range(int(os.environ["WORLD_SIZE"]))))
"""


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Starts ranks that run `code` and write their process ids to files pid-0, pid-1, ...; `seconds` are those that the
    launcher waits, by the name of the constant."""

    def started(num_ranks: int, code: str, lifeline: str = "", **seconds: float) -> subprocess.Popen[str]:
        (tmp_path / "rank.py").write_text(RANK + code)
        main = f"from growctl.launch import start_ranks as s; vars(s).update({seconds}); s.main()"
        command = [sys.executable, "-c", main, str(num_ranks), "29999", str(tmp_path / "rank.py"), str(tmp_path)]
        return subprocess.Popen(
            command,
            cwd=REPOSITORY,
            env=os.environ | ({VARIABLE: lifeline} if lifeline else {}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    return started


def gone(folder: Path, num_ranks: int) -> bool:
    pids = [(folder / f"pid-{rank}").read_text() for rank in range(num_ranks)]
    return not any(Path("/proc", pid).exists() for pid in pids)


def test_each_rank_gets_its_position_and_success_of_all_is_exit_code_0(start):
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_SIZE", "MASTER_ADDR", "MASTER_PORT")
    process = start(2, f"os.write(1, (' '.join(os.environ[name] for name in {names}) + chr(10)).encode())")
    out, _ = process.communicate(timeout=HANG_SECONDS)
    first, *said = out.splitlines()
    assert first.startswith(STARTED)
    assert sorted(said) == ["0 0 2 2 127.0.0.1 29999", "1 1 2 2 127.0.0.1 29999"]
    assert process.returncode == 0


@pytest.mark.slow
def test_a_failed_rank_ends_the_ranks_that_would_wait_for_it(start, tmp_path):
    process = start(3, "sys.exit('growctl: no such text') if rank == 1 else stay()")
    out, _ = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 1
    assert "growctl: no such text\n" in out
    assert "rank 1 exits with return code = 1" in out
    assert gone(tmp_path, 3)


@pytest.mark.slow
@pytest.mark.parametrize("last", ["exits", "stays"])
def test_if_several_ranks_fail_the_one_ended_by_a_signal_gives_the_exit_code(start, tmp_path, last):
    exits = "if rank == 0: sys.exit(3)\nif rank == 1: wait_for(lambda: gone(0))\n"
    killed = "if rank == 1: os.kill(os.getpid(), signal.SIGKILL)\n"
    if last == "exits":
        process = start(3, f"{exits}{killed}wait_for(lambda: gone(1)); sys.exit(3)", LEAVING_SECONDS=HANG_SECONDS)
    else:
        process = start(3, f"{killed}if rank == 0: wait_for(lambda: gone(1)); sys.exit(3)\nstay()")
    process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 128 + signal.SIGKILL
    assert gone(tmp_path, 3)


def test_signals_are_left_to_the_ranks_and_a_request_to_save_reaches_the_first(start, tmp_path):
    process = start(
        1,
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
        "signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b'asked' + bytes([10])))\n"
        "os.write(1, b'ready' + bytes([10])); stay()",
        lifeline=STDIN,
    )
    assert process.stdout
    assert process.stdout.readline().startswith(STARTED)
    assert process.stdout.readline() == "ready\n"
    wait_for(lambda: len(os.listdir(f"/proc/{process.pid}/task")) == 2)  # the launcher passes requests on from here
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        process.send_signal(number)
    assert process.stdout.readline() == "asked\n"
    process.send_signal(signal.SIGSTOP)
    wait_for(lambda: stat_of(process.pid)[0] == "T")
    process.send_signal(signal.SIGUSR1)
    process.send_signal(signal.SIGCONT)  # any thread may now get the request
    assert process.stdout.readline() == "asked\n"
    assert process.poll() is None
    os.kill(int((tmp_path / "pid-0").read_text()), signal.SIGTERM)
    process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 0


@pytest.mark.slow
def test_stopped_or_stuck_ranks_end_with_their_runner(start, tmp_path):
    code = "os.write(1, b'there' + bytes([10])); os.kill(os.getpid(), signal.SIGSTOP) if rank else stay()"
    process = start(2, code, lifeline=STDIN, PATIENCE_SECONDS=0.5)
    assert [process.stdout.readline() for _ in range(3)][1:] == ["there\n"] * 2
    process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 143
    wait_for(lambda: gone(tmp_path, 2))
