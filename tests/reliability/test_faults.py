"""The injected faults strike at the chosen point, once, and nowhere else."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.reliability.faults.sitecustomize import HERE, VARIABLE
from tests.workers import HANG_SECONDS, REPOSITORY

RENAME = "import os; open('a', 'w').close(); os.rename('a', 'b')"


@pytest.fixture
def python(tmp_path):
    """Runs a program in `tmp_path/work` under faults, and returns the finished process."""
    (tmp_path / "marks").mkdir()
    (tmp_path / "work").mkdir()

    def run(program: str, *faults: dict[str, object], path: Path | None = None) -> subprocess.CompletedProcess[str]:
        told = {"folder": str(tmp_path / "marks"), "faults": list(faults)}
        folders = [HERE, str(REPOSITORY), *([str(path)] if path else [])]
        environment = os.environ | {"PYTHONPATH": ":".join(folders), VARIABLE: json.dumps(told)}
        command = [sys.executable, "-c", program]
        return subprocess.run(
            command,
            env=environment,
            cwd=tmp_path / "work",
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
            check=False,
        )

    return run


@pytest.mark.parametrize(("side", "left"), [("before", ["a"]), ("after", ["b"])])
def test_a_kill_strikes_before_or_after_the_call_once_for_all_processes(python, tmp_path, side, left):
    fault = {"name": "f", "at": "os:rename", "side": side, "matching": "^a$", "do": "SIGKILL"}
    assert python(RENAME, fault).returncode == -9
    assert os.listdir(tmp_path / "work") == left
    assert json.loads((tmp_path / "marks/f").read_text())["call"][0] == "a"
    assert python(RENAME, fault).returncode == 0


def test_it_strikes_at_the_nth_call_that_matches(python, tmp_path):
    program = "import os\nfor i in range(9): os.mkdir(f'no{i}'); os.mkdir(f'yes{i}')"
    assert python(program, {"name": "f", "at": "os:mkdir", "matching": "yes", "nth": 3, "do": "SIGKILL"}).returncode
    assert sorted(os.listdir(tmp_path / "work")) == ["no0", "no1", "no2", "yes0", "yes1"]


def test_functions_and_methods_are_wrapped_as_their_module_is_imported(python):
    method = {"name": "m", "at": "stages.metrics:MetricsReader.__init__", "matching": "later", "do": "EIO"}
    named = {"name": "n", "at": "stages.checkpoint.files:hash_file", "do": "ENOSPC"}
    program = "from pathlib import Path; from stages.metrics import read_metrics as r; r(Path('now')); r(Path('later'))"
    assert "OSError: [Errno 5] Input/output error" in python(program, method, named).stderr
    program = "from stages.checkpoint.manifest import manifest_hash; from pathlib import Path; manifest_hash(Path())"
    assert "OSError: [Errno 28] No space left on device" in python(program, method, named).stderr


def test_any_file_change_can_be_a_point(python, tmp_path):
    fault = {"name": "f", "at": "files", "matching": str(tmp_path / "work"), "nth": 2, "do": "SIGKILL"}
    program = (
        f"from pathlib import Path; p = Path({str(tmp_path / 'work')!r}); (p / 'a').touch(); p.joinpath('b').mkdir()"
    )
    assert python(program, fault).returncode == -9
    assert os.listdir(tmp_path / "work") == ["a"]


def test_a_torn_file_is_cut_to_half(python, tmp_path):
    fault = {"name": "f", "at": "os:replace", "side": "after", "tear": True, "matching": "b$", "do": "SIGKILL"}
    python("import os; from pathlib import Path; Path('a').write_bytes(b'12345678'); os.replace('a', 'b')", fault)
    assert (tmp_path / "work/b").read_bytes() == b"1234"


def test_a_slow_call_a_stall_and_a_clock_that_goes_back(python):
    slow = {"name": "slow", "at": "os:mkdir", "do": "sleep", "seconds": 0.5}
    clock = {"name": "clock", "at": "os:rmdir", "do": "clock", "seconds": 3600.0}
    program = (
        "import os, time; a = time.time(); os.mkdir('d'); print(time.time() - a); os.rmdir('d'); print(time.time() - a)"
    )
    before, after = map(float, python(program, slow, clock).stdout.split())
    assert before >= 0.5
    assert after < before - 3000
    started = time.monotonic()
    stall = {"name": "stall", "at": "os:mkdir", "do": "stall"}
    program = "import os, threading; threading.Timer(1, os._exit, (7,)).start(); os.mkdir('d')"
    assert python(program, stall).returncode == 7
    assert time.monotonic() - started >= 1


def test_other_processes_are_left_alone_and_a_hidden_sitecustomize_still_runs(python, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other/sitecustomize.py").write_text("print('the other one')")
    fault = {"name": "f", "at": "os:rename", "process": "rank", "do": "SIGKILL"}
    ended = python(RENAME, fault, path=tmp_path / "other")
    assert (ended.returncode, ended.stdout) == (0, "the other one\n")
    assert os.listdir(tmp_path / "marks") == []
