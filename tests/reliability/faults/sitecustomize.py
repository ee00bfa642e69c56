"""Injects faults into every growctl process whose PYTHONPATH has this folder: Python, or a fork, imports it at start.

GROWCTL_FAULTS holds a JSON object: `folder`, for the mark files, and `faults`, a list of objects with

- name: the name of its mark file, `folder/<name>`, which also records the process that struck. A fault with a mark
  never strikes again, in any process
- at: `module:function` or `module:Class.method`; or `files`, every call that changes a file
- side: `before` the call (the default) or `after` it; `files` supports only `before`
- matching: a regular expression that must match one of the call's strings, paths or open files
- process: `runner`, `converter`, `launcher`, `rank` or `helper`; rank: its number; command: a regular expression for
  the process's command line
- nth: strike at the nth such call of the process, counted from 1
- do: a signal's name; an errno's name, raised as OSError; `sleep`; `stall`, an endless sleep; `clock`, set back
- to: the target of a signal: `self`, `runner`, `rank 0`, `rank 1`, `ranks`, `everybody`
- seconds: the length of a sleep, also before a signal; the time by which the clock is set back
- tear: first cut the call's file to half its length
- always: strike at every such call, in every process, and leave no mark

It may also hold `poison`: the training samples that tests/reliability/poison.py poisons.

growctl itself contains no code for this.
"""

import errno
import importlib
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any

VARIABLE = "GROWCTL_FAULTS"
HERE = str(Path(__file__).parent)
HOLD_SECONDS = 300.0
"""Seconds that a rank waits after it had others killed: their end also ends it."""

FORK = 1000
"""The descriptor by which a fork of tests/warm_start.py tells what it is: in /proc, it is like its parent."""

OURS = ("growctl", "model", "stages")

MODULES = {"growctl.cli.app": "runner", "stages.engine.convert": "converter", "growctl.launch.start_ranks": "launcher"}
MODULES |= {"stages.train.worker": "rank"}
CHANGES = {"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.link", "os.truncate", "shutil.rmtree"}

Fault = dict[str, Any]


def part_of(command: list[str]) -> str:
    """The part that a process plays, from the first `-m` on its command line."""
    module = command[command.index("-m") + 1] if "-m" in command[:-1] else ""
    return MODULES.get(module, "helper")


def describe(command: list[str], environment: dict[bytes, bytes]) -> None:
    """Has `described` tell this of the calling process, a fork."""
    description = os.memfd_create("growctl-fork")
    lines = [b"=".join(entry).decode(errors="replace") for entry in environment.items()]
    os.write(description, json.dumps([command, lines]).encode())
    os.dup2(description, FORK, inheritable=False)
    os.close(description)


def described() -> Iterator[tuple[int, list[str], list[str]]]:
    """(process id, command line, lines of the environment) of every live process."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        fork = entry / f"fd/{FORK}"
        try:
            if fork.is_symlink() and "growctl-fork" in os.readlink(fork):
                command, environment = json.loads(fork.read_text())
            else:
                texts = [(entry / name).read_bytes().decode(errors="replace") for name in ("cmdline", "environ")]
                command, environment = (text.split("\0") for text in texts)
        except (OSError, ValueError):
            continue  # the process has ended, has just begun, or belongs to another user
        yield int(entry.name), command, environment


def processes(folder: str) -> list[tuple[int, str, int | None]]:
    """(process id, part, rank) of every live process that was started with this folder's faults."""
    found = []
    for pid, command, environment in described():
        if any(line.startswith(f"{VARIABLE}=") and json.dumps(folder) in line for line in environment):
            rank = next((int(line[5:]) for line in environment if line.startswith("RANK=")), None)
            found.append((pid, part_of(command), rank))
    return found


def send(number: signal.Signals, to: str, folder: str) -> list[int]:
    """Signals all processes that `to` selects, this process last; returns their ids."""
    alive = processes(folder)
    if to == "self":
        pids = [os.getpid()]
    elif to == "everybody":
        pids = [pid for pid, *_ in alive]
    else:
        pids = [pid for pid, part, rank in alive if to in (part, f"{part}s", f"{part} {rank}")]
    pids.sort(key=lambda pid: pid == os.getpid())
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
    return pids


class Armed:
    """One fault, in one process."""

    def __init__(self, fault: Fault, folder: str) -> None:
        self.fault, self.folder, self.process, self.calls = fault, folder, os.getpid(), 0

    def meets(self, arguments: Iterable[Any]) -> bool:
        """Whether the fault strikes at this call."""
        pattern = self.fault.get("matching")
        if os.getpid() != self.process:  # a fork of the process that it is meant for
            return False
        if pattern and not any(re.search(pattern, text) for text in map(_text, arguments)):
            return False
        self.calls += 1
        return self.calls == self.fault.get("nth", 1) or "always" in self.fault

    def strike(self, arguments: Iterable[Any]) -> None:
        """Strikes, unless a process has already struck."""
        texts = [_text(argument) for argument in arguments]
        if "always" not in self.fault:
            try:
                mark = os.open(os.path.join(self.folder, self.fault["name"]), os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            except FileExistsError:
                return
            who = {"process": os.getpid(), "command": sys.orig_argv, "call": texts}
            os.write(mark, json.dumps(who).encode())
            os.close(mark)
        if self.fault.get("tear"):
            torn = next(text for text in texts if os.path.isfile(text))
            os.truncate(torn, os.path.getsize(torn) // 2)
        self._do(self.fault["do"], self.fault.get("seconds", 0.0))

    def _do(self, do: str, seconds: float) -> None:
        if do == "clock":
            for name, unit in (("time", 1), ("time_ns", 10**9)):
                setattr(time, name, _behind(getattr(time, name), seconds * unit))
            return
        time.sleep(1e6 if do == "stall" else seconds)
        if do.startswith("SIG"):
            pids = send(signal.Signals[do], self.fault.get("to", "self"), self.folder)
            if do == "SIGKILL" and os.getpid() not in pids and part_of(sys.orig_argv) == "rank":
                time.sleep(HOLD_SECONDS)
        elif do.startswith("E"):
            code = getattr(errno, do)
            raise OSError(code, os.strerror(code))


def _behind(clock: Callable[[], Any], by: float) -> Callable[[], Any]:
    return lambda: clock() - type(clock())(by)


def _text(argument: Any) -> str:
    if isinstance(argument, int) and not isinstance(argument, bool):
        try:
            return os.readlink(f"/proc/self/fd/{argument}")
        except OSError:
            return ""
    return os.fspath(argument) if isinstance(argument, (str, os.PathLike)) else ""


def _wrap(module: Any, armed: Armed) -> None:
    """Wraps the function of a fault in its module or class, and in all of our modules that have imported it."""
    *owners, name = armed.fault["at"].partition(":")[2].split(".")
    owner = module
    for part in owners:
        owner = getattr(owner, part)
    function = getattr(owner, name)

    @wraps(function)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        given = (*arguments, *named.values())
        now = armed.meets(given)  # before the call, which may remove the file that its arguments name
        after = armed.fault.get("side") == "after"
        if now and not after:
            armed.strike(given)
        result = function(*arguments, **named)
        if now and after:
            armed.strike(given)
        return result

    setattr(owner, name, wrapped)
    for other in [module for path, module in sys.modules.items() if path.partition(".")[0] in OURS]:
        for found in [found for found, value in vars(other).items() if value is function]:
            setattr(other, found, wrapped)


class _Program(Armed):
    """Wraps functions of the program itself: `python -m` does not execute its module through an import."""

    def __init__(self, armed: Armed) -> None:
        super().__init__({"name": "", "at": "stages.engine.rank_process:run_rank", "do": ""}, "")
        self.armed = armed

    def strike(self, arguments: Iterable[Any]) -> None:
        _wrap(sys.modules["__main__"], self.armed)


def _on_files(armed: Armed, folder: str) -> Callable[[str, tuple[Any, ...]], None]:
    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            flags = arguments[2] if isinstance(arguments[2], int) else 0
            changes = flags & (os.O_WRONLY | os.O_RDWR) and not _text(arguments[0]).startswith(folder)
            named = arguments[:1]
        else:
            changes, named = event in CHANGES, arguments[:2]
        if changes and armed.meets(named):
            armed.strike(arguments)

    return hook


def _meant(fault: Fault) -> bool:
    part, rank = fault.get("process"), fault.get("rank")
    return (
        part in (None, part_of(sys.orig_argv))
        and (rank is None or os.environ.get("RANK", os.environ.get("SLURM_PROCID")) == str(rank))
        and re.search(fault.get("command", ""), " ".join(sys.orig_argv)) is not None
    )


def install(told: dict[str, Any]) -> None:
    """Arms the faults that are meant for this process."""
    program = sys.orig_argv[sys.orig_argv.index("-m") + 1] if "-m" in sys.orig_argv[:-1] else None
    for fault in filter(_meant, told["faults"]):
        armed, module = Armed(fault, told["folder"]), fault["at"].partition(":")[0]
        if module == "files":
            sys.addaudithook(_on_files(armed, told["folder"]))
            continue
        if module == program:
            armed, module = _Program(armed), "stages.engine.rank_process"
        _wrap(importlib.import_module(module), armed)
    if "poison" in told and "RANK" in os.environ:
        importlib.import_module("tests.reliability.poison").install(told["poison"])


if __name__ == "sitecustomize" and VARIABLE in os.environ:
    install(json.loads(os.environ[VARIABLE]))
