"""Starts growctl's processes as forks of one that has torch and DeepSpeed imported already.

Importing them costs a rank two of the three seconds that a tiny stage takes. Where `VARIABLE` is in the environment of
a new process, and so in that of everything it starts, `python -m MODULE` and `python SCRIPT` begin as a fork that is
made to look freshly started: the same file descriptors, environment, directory, signals, caches and random numbers. It
is a process of its own, child of the one that starts it, for signals, pipes, locks and files. A `sitecustomize` on its
PYTHONPATH, which injects faults, is run as at an interpreter's start. For its command line and environment, which in
/proc are its parent's, ask tests/reliability/faults/sitecustomize.py.
"""

import atexit
import faulthandler
import functools
import gc
import importlib.util
import logging
import os
import random
import runpy
import signal
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Sequence
from importlib.machinery import PathFinder
from typing import Any, NoReturn

from tests.reliability.faults.sitecustomize import OURS, describe

VARIABLE = "GROWCTL_TESTS_FORK"
NONE = -1
"""What subprocess passes for a stream that the child inherits."""

_STREAMS = (("stdin", "r", "strict"), ("stdout", "w", "strict"), ("stderr", "w", "backslashreplace"))
_FILTERS = list(warnings.filters)
_PATH = list(sys.path)
_KEPT: list[Any] = []
_EXEC = subprocess._fork_exec  # type: ignore[attr-defined]


def install() -> None:
    """Has subprocess start growctl's processes as forks where `VARIABLE` asks for it, unless torch has several threads:
    OpenMP's do not survive a fork."""
    if os.environ.get("OMP_NUM_THREADS") == "1":
        subprocess._fork_exec = _start  # type: ignore[attr-defined]


@functools.cache
def _random_states() -> tuple[Any, Any]:
    """Imports what all of growctl's processes import; the states of random numbers as a new process has them."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    import torch

    for module in ("growctl.cli.app", "growctl.launch.start_ranks", "growctl.run.runner", "stages.train.worker"):
        importlib.import_module(module)
    del os.environ["DS_ACCELERATOR"]
    return torch.Generator().get_state(), random.Random(0).getstate()


def _start(args: Sequence[bytes], executables: Any, close_fds: bool, keep: Any, cwd: Any, env: Any, *rest: Any) -> int:
    """subprocess's own way to start a process, or a fork that runs the same."""
    environment = os.environb.copy() if env is None else dict(entry.split(b"=", 1) for entry in env)
    program = [word for word in map(os.fsdecode, args) if word != "-u"]
    if VARIABLE.encode() not in environment or program[:1] != [sys.executable] or program[1:2] == ["-c"]:
        return _EXEC(args, executables, close_fds, keep, cwd, env, *rest)
    states = _random_states()
    pid = os.fork()
    if pid:
        return pid
    stdin, _, _, stdout, _, stderr, _, _, _, new_session, process_group, *_ = rest
    try:
        _look_fresh(environment, cwd, (stdin, stdout, stderr), new_session, process_group, states)
        sys.orig_argv[:] = program
        describe(program, environment)
        _customize(os.environ.get("PYTHONPATH", "").split(":"))
        _run(program[1:])
    finally:
        os._exit(1)


def _look_fresh(
    environment: dict[bytes, bytes],
    cwd: Any,
    streams: Sequence[int],
    new_session: bool,
    process_group: int,
    states: tuple[Any, Any],
) -> None:
    """Gives this fork all that a new interpreter has, and takes from it what only its parent has."""
    gc.freeze()  # what the parent's objects would do when they are collected is not for this process to do
    if new_session:
        os.setsid()
    if process_group != NONE:
        os.setpgid(0, process_group)
    for number, descriptor in enumerate(streams):
        if descriptor != NONE:
            os.dup2(descriptor, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    if cwd is not None:
        os.chdir(cwd)
    os.environ.clear()
    os.environb.update(environment)
    signal.set_wakeup_fd(-1)
    for sent in signal.valid_signals():
        if callable(signal.getsignal(sent)):
            signal.signal(sent, signal.default_int_handler if sent == signal.SIGINT else signal.SIG_DFL)
    for number, (name, mode, errors) in enumerate(_STREAMS):
        _KEPT.append(getattr(sys, name))  # whose closing may wait for a thread of the parent
        stream = open(number, mode, buffering=1 if mode == "w" else -1, errors=errors, closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    faulthandler.disable()
    sys.excepthook, sys.unraisablehook, threading.excepthook = (
        sys.__excepthook__,
        sys.__unraisablehook__,
        threading.__excepthook__,
    )
    warnings.filters[:] = _FILTERS  # type: ignore[index]
    warnings.showwarning = warnings._showwarning_orig  # type: ignore[attr-defined]
    logging.root.handlers.clear()
    for logger in logging.Logger.manager.loggerDict.values():
        for handler in getattr(logger, "handlers", ()):
            if type(handler) is logging.StreamHandler:
                handler.stream = sys.stdout
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] in OURS:
            for value in vars(module).values():
                if isinstance(value, functools._lru_cache_wrapper):
                    value.cache_clear()
    import torch

    torch.set_rng_state(states[0])
    random.setstate(states[1])
    atexit._clear()


def _customize(folders: list[str]) -> None:
    """What an interpreter does at its start with the folders of PYTHONPATH."""
    sys.path[:] = [*filter(None, folders), *_PATH]
    sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__module__ != "_pytest.assertion.rewrite"]
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec and spec.loader:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def _run(program: list[str]) -> NoReturn:
    """Runs `-m MODULE ARGUMENT...` or `SCRIPT ARGUMENT...` as the main program, and ends this process with it."""
    code = 0
    try:
        if program[0] == "-m":
            sys.argv = program[1:]
            sys.modules.pop(program[1], None)  # it is the main program now
            runpy.run_module(program[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = program
            sys.path.insert(0, os.path.dirname(program[0]))
            runpy.run_path(program[0], run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
