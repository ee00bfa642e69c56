"""What growctl reads from the log of workers that failed."""

from pathlib import Path

import pytest

from growctl.launch.worker_logs import ending_signal, failure_reason, unreached_machine

EARLIER = "growctl: an earlier attempt\nnode-2: no route\npdsh@a: node-2: ssh exited with exit code 255\n"
STARTED = "[runner.py:618:main] cmd = pdsh -S -w node-1,node-2\nnode-1: starting\n"
NO_QUESTION = "must work without a password or a question"
SSH_FIX = f"`ssh node-2 true` {NO_QUESTION}"
PATH_FIX = "growctl must be installed at the same path on every machine"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log.txt"


@pytest.mark.parametrize(
    ("said", "code", "fix"),
    [
        ("ssh: connect to host node-2 port 22: No route to host", 255, SSH_FIX),
        ("bash: line 1: /opt/growctl/bin/python: No such file or directory", 127, PATH_FIX),
    ],
)
def test_a_machine_that_pdsh_does_not_reach_is_named_with_what_ssh_said(log, said, code, fix):
    log.write_text(
        f"{EARLIER}{STARTED}node-2: {said}\npdsh@node-1: node-2: ssh exited with exit code {code}\nnode-1: waiting\n"
    )
    reason = f"ssh to node-2 ended with exit code {code} ({said.removesuffix('.')}); {fix}"
    assert unreached_machine(log, len(EARLIER)) == failure_reason(log, len(EARLIER)) == reason


MPIRUN = "[runner.py:618:main] cmd = mpirun -n 2\n{}\n-----\nORTE was unable to reliably start one or more daemons.\n"


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        ("noise\ngrowctl: the loss is nan\nmore noise\n", "the loss is nan"),
        ("one: growctl: the loss is nan\ntwo: RuntimeError: connection closed\n", "the loss is nan"),
        ("one: Traceback\none: RuntimeError: connection closed\none: bye\n", "one: RuntimeError: connection closed"),
        ("RuntimeError: connection closed\nsrun: error: Node failure on node2\n", "Node failure on node2"),
        ("two: OSError: gone\npdsh@one: two: ssh exited with exit code 1\n", "two: OSError: gone"),
        (
            MPIRUN.format("root@node-2: Permission denied (publickey)."),
            f"ssh from mpirun failed (root@node-2: Permission denied (publickey)); ssh to every machine {NO_QUESTION}",
        ),
        ("1\n2\n3\n4\n5\n6\n", "2\n3\n4\n5\n6"),
        ("", "no output"),
    ],
)
def test_the_reason_for_a_failure_is_the_workers_own_message_if_there_is_one(log, printed, reason):
    log.write_text(EARLIER + printed)
    assert failure_reason(log, len(EARLIER)) == reason


@pytest.mark.parametrize(("exit_code", "number"), [(137, 9), (-9, 9), (143, 15), (255, 0), (127, 0), (1, 0)])
def test_only_exit_codes_of_signals_name_a_signal(log, exit_code, number):
    assert ending_signal(exit_code) == number
    log.write_text("")
    assert failure_reason(log, 0, exit_code).startswith(f"a worker was ended by signal {number}") == (number > 0)
