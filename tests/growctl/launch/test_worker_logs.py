"""What growctl reads from the log of workers that failed on other machines."""

from pathlib import Path

import pytest

from growctl.launch.worker_logs import ending_signal, failure_reason, unreached_machine

STARTED = "[runner.py:618:main] cmd = pdsh -S -w node-1,node-2\nnode-1: starting\n"
NO_ROUTE = "ssh: connect to host node-2 port 22: No route to host"
SSH_FIX = "`ssh node-2 true` must work without a password or a question"
MPIRUN_BANNER = (
    "--------------------------------------------------------------------------\n"
    "ORTE was unable to reliably start one or more daemons.\n* not finding the required libraries\n"
    "  and network routing requirements).\n"
    "--------------------------------------------------------------------------\n"
)


def log(folder: Path, text: str) -> Path:
    path = folder / "log.txt"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("said", "code", "fix"),
    [
        (NO_ROUTE, 255, SSH_FIX),
        ("root@node-2: Permission denied (publickey).", 255, SSH_FIX),
        ("Host key verification failed.", 255, SSH_FIX),
        ("Timeout, server node-2 not responding.", 255, SSH_FIX),
        (
            "bash: line 1: /opt/growctl/bin/python: No such file or directory",
            127,
            "growctl must be installed at the same path on every machine",
        ),
    ],
)
def test_a_machine_that_pdsh_does_not_reach_is_named_with_what_ssh_said(tmp_path, said, code, fix):
    text = f"{STARTED}node-2: {said}\npdsh@node-1: node-2: ssh exited with exit code {code}\nnode-1: waiting\n"
    reason = f"ssh to node-2 ended with exit code {code} ({said.removesuffix('.')}); {fix}"
    assert unreached_machine(log(tmp_path, text), 0) == reason
    assert failure_reason(log(tmp_path, text), 0) == reason


def test_neither_an_earlier_attempt_nor_a_worker_that_fails_by_itself_names_an_unreached_machine(tmp_path):
    earlier = f"node-2: {NO_ROUTE}\npdsh@a: node-2: ssh exited with exit code 255\n"
    failed = "node-2: ZeroDivisionError: division by zero\npdsh@node-1: node-2: ssh exited with exit code 1\n"
    assert unreached_machine(log(tmp_path, earlier + STARTED + failed), len(earlier)) is None


def test_what_ssh_said_is_found_above_mpiruns_long_advice(tmp_path):
    said = "root@node-2: Permission denied (publickey)."
    text = f"[runner.py:618:main] cmd = mpirun -n 2\n{said}\n{MPIRUN_BANNER}"
    reason = f"ssh from mpirun failed ({said.removesuffix('.')}); ssh to every machine must work"
    assert failure_reason(log(tmp_path, text), 0) == f"{reason} without a password or a question"


@pytest.mark.parametrize(("exit_code", "number"), [(137, 9), (-9, 9), (143, 15), (255, 0), (127, 0), (1, 0)])
def test_only_exit_codes_of_signals_name_a_signal(exit_code, number):
    assert ending_signal(exit_code) == number
