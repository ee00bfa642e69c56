"""Checks this machine's clock: whether it jumps, is synchronised, and agrees with the file system's clock."""

import ctypes
import os
import time
from pathlib import Path
from typing import NamedTuple

from growctl.doctor.check import Check

JUMP_SECONDS = 0.5
"""More than this between wall clock and monotonic clock is a jump: a synchronised clock is slewed by 0.0005 a second at
most, 0.1 seconds during the longest check."""
FILE_LAG_SECONDS = 2.0
"""File systems round times to up to two seconds (FAT)."""

_STATUS_UNSYNCHRONISED = 0x40
"""The kernel's STA_UNSYNC, which `timedatectl` shows as `System clock synchronized: no`."""


class Reading(NamedTuple):
    """Both clocks at one moment, in seconds."""

    monotonic: float
    wall: float


def read_clocks() -> Reading:
    """Both clocks now."""
    return Reading(time.monotonic(), time.time())


def judged(started: Reading, ended: Reading, file_lag: float | None, synchronised: bool | None) -> Check:
    """Judges the clocks read before and after the other checks; None for what could not be measured."""
    elapsed = ended.monotonic - started.monotonic
    jump = (ended.wall - started.wall) - elapsed
    problems, fixes = [], []
    if abs(jump) > JUMP_SECONDS:
        problems.append(
            f"the clock jumped {'forward' if jump > 0 else 'back'} by {abs(jump):.1f} s within {elapsed:.0f} s: times "
            "in logs and in the ledger will be wrong"
        )
        fixes.append("let one service alone set the clock (chrony or systemd-timesyncd, or the hypervisor's tools)")
    if file_lag is not None and abs(file_lag) > FILE_LAG_SECONDS:
        problems.append(
            f"the runs directory's file system is {abs(file_lag):.1f} s {'ahead' if file_lag > 0 else 'behind'}: files "
            "look newer or older than they are, also to builds"
        )
        fixes.append("synchronise this machine and the file server with the same time servers")
    if synchronised is False:
        problems.append("the kernel says that no service synchronises the clock: logs of several machines will differ")
        fixes.append("timedatectl set-ntp true, or start chronyd")
    if problems:
        return Check("clock", "warning", "; ".join(problems), "; ".join(fixes))
    known = {True: "synchronised, ", None: ""}[synchronised]
    return Check("clock", "ok", f"{known}no jump within {elapsed:.0f} s")


def file_lag(folder: Path) -> float | None:
    """How far the clock of the file system of `folder` is ahead of this machine's, in seconds; None if unknown."""
    path = folder / "time"
    try:
        before = time.time()
        path.write_bytes(b"now")
        after, stamped = time.time(), path.stat().st_mtime
    except OSError:
        return None
    return stamped - min(max(stamped, before), after)


def is_synchronised() -> bool | None:
    """Whether the kernel's clock is synchronised with a time server; None if the kernel does not say."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        answer = _Timex()  # modes = 0: only reads
        if libc.adjtimex(ctypes.byref(answer)) < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    except (OSError, AttributeError):
        return None
    return not answer.status & _STATUS_UNSYNCHRONISED


class _Timex(ctypes.Structure):
    """The start of Linux's `struct timex`, and room for the rest."""

    _fields_ = [
        ("modes", ctypes.c_uint),
        *((name, ctypes.c_long) for name in ("offset", "freq", "maxerror", "esterror")),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_char * 256),
    ]
