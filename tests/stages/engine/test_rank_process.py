"""The exit code and the last message of a rank."""

import os
import subprocess
import sys

import pytest

from growctl.launch.local import free_port
from tests import warm_start
from tests.workers import HANG_SECONDS

pytestmark = pytest.mark.trains

RANK = """
import atexit, sys
from model.errors import Failure, UserError
from stages.engine.rank_process import run_rank
atexit.register(print, "the interpreter was taken down")
def work(spec, device):
    print(f"worked on {spec.name}")
    if spec.name != "good.json":
        errors = {"told.json": UserError, "failed.json": Failure, "value.json": ValueError}
        raise errors[spec.name]("the loss is nan")
run_rank(work)
"""


def run_rank_on(spec: str, *start: str, **streams) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "DS_ACCELERATOR": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "GLOO_SOCKET_IFNAME": "lo",
        warm_start.VARIABLE: "1",
    }
    command = [sys.executable, *start, spec]
    return subprocess.run(command, env=environment, text=True, timeout=HANG_SECONDS, check=False, **streams)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("good.json", []),
        ("told.json", ["growctl: the loss is nan"]),
        ("failed.json", ["growctl: the loss is nan"]),
        ("value.json", []),
    ],
)
def test_a_rank_exits_with_its_code_and_reason_and_skips_the_shutdown(spec, said, tmp_path):
    (tmp_path / "rank.py").write_text(RANK)
    result = run_rank_on(spec, str(tmp_path / "rank.py"), capture_output=True)
    failed = spec != "good.json"
    assert result.returncode == failed, result.stderr
    assert result.stdout == f"worked on {spec}\n"
    lines = result.stderr.splitlines()
    assert [line for line in lines if line.startswith("growctl: ")] == said
    assert any(line.startswith("Traceback") for line in lines) == failed


def test_a_failing_rank_exits_even_if_its_log_cannot_be_written():
    with open("/dev/full", "w") as full:
        result = run_rank_on("told.json", "-c", RANK, stdout=subprocess.PIPE, stderr=full)
    assert (result.returncode, result.stdout) == (1, "worked on told.json\n")
