"""The main memory that this process may still take: of the machine, and within the limits of its container or job."""

import re
from collections.abc import Iterator
from pathlib import Path

_AVAILABLE = re.compile(r"^MemAvailable:\s+(\d+) kB$", re.MULTILINE)
_CACHED = ("inactive_file", "total_inactive_file")
"""In memory.stat of a group: the cached files that the kernel drops when a process needs memory (versions 2 and 1)."""


def available_memory(root: Path = Path("/")) -> int | None:
    """The available bytes of main memory; None if unknown. `root` holds `proc` and `sys`."""
    found = [*_of_machine(root), *_of_groups(root)]
    return min(found, default=None)


def _of_machine(root: Path) -> Iterator[int]:
    if match := _AVAILABLE.search(_text(root / "proc/meminfo")):
        yield 1024 * int(match[1])


def _of_groups(root: Path) -> Iterator[int]:
    """What each limit on this process's control groups leaves: a container may show only its own group, as the root."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        top = root / "sys/fs/cgroup" / controllers
        limit, used = (
            ("memory.limit_in_bytes", "memory.usage_in_bytes") if controllers else ("memory.max", "memory.current")
        )
        own = top / group.lstrip("/")
        for folder in (own, *own.parents):
            if folder.is_relative_to(top):
                yield from _left(folder, limit, used)


def _left(folder: Path, limit: str, used: str) -> Iterator[int]:
    most, now = _text(folder / limit).strip(), _text(folder / used).strip()
    if most.isdecimal() and now.isdecimal():
        statistics = dict(line.split(maxsplit=1) for line in _text(folder / "memory.stat").split("\n") if " " in line)
        cached = next((int(statistics[name]) for name in reversed(_CACHED) if name in statistics), 0)
        yield max(0, int(most) - int(now) + cached)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
