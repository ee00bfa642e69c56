"""What benchmarks share: their options, fresh processes, and a results file that describes the machine."""

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any


def options(description: str | None) -> argparse.ArgumentParser:
    """The options of a benchmark: a note for its results file."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--note", help="a note for the results file, such as what else ran on the machine")
    return parser


def print_results(note: str | None, *packages: str, **results: Any) -> None:
    """Prints a results file: the date, the machine with the versions of `packages`, and the results."""
    head = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "note": note, "machine": machine(*packages)}
    print(json.dumps(head | results, indent=1))


def restart_with(variables: Mapping[str, str]) -> None:
    """Starts this program again with `variables`, unless it has them: glibc reads some only at start-up."""
    if any(os.environ.get(name) != value for name, value in variables.items()):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | variables)


def in_fresh_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Runs `function` in a new process and returns its result.

    Where that process's peak memory counts, this one must stay small: it would count as the child's.
    """
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def machine(*packages: str) -> dict[str, Any]:
    """Processor, cores, system, and the versions of Python, torch and `packages`."""
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        **{package: version(package) for package in ("torch", *packages)},
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
    }


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
