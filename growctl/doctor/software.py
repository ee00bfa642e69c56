"""Checks of installed software: Python, packages, the compiler, cluster programs."""

import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Iterable

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from growctl.doctor.check import CommandFailed, Problem, run_command
from stages.counted import counted
from stages.probe.records import MachineFacts

_CPP = "#include <concepts>\n#include <vector>\nint main() { return std::vector<int>(1).size() == 1 ? 0 : 1; }\n"
"""A small C++20 program: torch's headers need C++20."""


def requirements() -> dict[str, Requirement]:
    """The packages that growctl needs, by name."""
    needed = [Requirement(text) for text in importlib.metadata.requires("growctl") or []]
    return {each.name: each for each in needed if each.marker is None or each.marker.evaluate({"extra": ""})}


def python_version() -> str:
    """Checks the Python that growctl and its workers run in."""
    allowed = SpecifierSet(importlib.metadata.metadata("growctl")["Requires-Python"])
    version = f"{platform.python_version()} ({sys.executable})"
    if not allowed.contains(platform.python_version(), prereleases=True):
        raise Problem(version, f"growctl needs Python {allowed}; install growctl into one of those")
    return version


def package(needed: Requirement) -> str:
    """The version of an installed package; checks that it is in the range that growctl was tested with."""
    fix = f"pip install '{needed.name}{needed.specifier}'"
    try:
        version = importlib.metadata.version(needed.name)
    except importlib.metadata.PackageNotFoundError:
        raise Problem("not installed", fix) from None
    if not needed.specifier.contains(version, prereleases=True):
        raise Problem(f"{version}; growctl needs {needed.specifier}", fix)
    return version


def other_packages() -> str:
    """Checks all packages but torch and DeepSpeed."""
    others = {name: each for name, each in requirements().items() if name not in ("torch", "deepspeed")}
    problems: dict[str, Problem] = {}
    for name, needed in others.items():
        try:
            package(needed)
        except Problem as problem:
            problems[name] = problem
    if problems:
        wanted = " ".join(f"'{name}{others[name].specifier}'" for name in problems)
        raise Problem("; ".join(f"{name} {problem}" for name, problem in problems.items()), f"pip install {wanted}")
    return f"{counted(len(others), 'other')}, all in the ranges that growctl allows"


def torch_build(facts: MachineFacts | str) -> str:
    """Checks torch's version, and compares what it was built for with what the driver supports."""
    version = package(requirements()["torch"])
    if isinstance(facts, str):
        raise Problem(f"{version} cannot be used: {facts}", "pip install --force-reinstall torch")
    built = f"CUDA {facts.cuda}" if facts.cuda else f"ROCm {facts.hip}" if facts.hip else "CPUs"
    driver = f"the driver supports CUDA up to {facts.driver}" if facts.driver else "no NVIDIA driver here"
    what = f"{version}, built for {built}; {driver}"
    uses_gpus = any(device.kind == "cuda" for device in facts.devices)
    if uses_gpus or facts.driver is None or facts.problem:
        return what
    if facts.cuda is None:
        fix = "runs would train on the CPU; install a build for CUDA: https://pytorch.org/get-started/locally"
    elif _numbers(facts.driver) < _numbers(facts.cuda):
        fix = f"update the NVIDIA driver, or install a torch built for CUDA {facts.driver} or older"
    else:
        fix = "torch finds no GPU: check nvidia-smi and CUDA_VISIBLE_DEVICES; start a container with --gpus all"
    raise Problem(what, fix, "warning")


def deepspeed_import(facts: MachineFacts | str) -> str:
    """Checks DeepSpeed's version, and whether it can be imported."""
    version = package(requirements()["deepspeed"])
    if not isinstance(facts, str) and facts.problem:
        fix = "install what the message asks for, then run pip install --force-reinstall --no-deps deepspeed"
        raise Problem(f"{version} cannot be imported: {facts.problem}", fix)
    return version


def compiler() -> str:
    """Checks the C++ compiler: installed, and with its headers."""
    name = os.environ.get("CXX") or "c++"
    try:
        run_command([name, "-std=c++20", "-fsyntax-only", "-x", "c++", "-"], os.environ, _CPP)
    except (CommandFailed, OSError) as error:
        use = "training does not need one, but DeepSpeed's and Triton's own operators do"
        fix = "install one with its headers (apt install g++, dnf install gcc-c++), or set CXX to its path"
        raise Problem(f"{name} does not compile C++20: {error}; {use}", fix, "warning") from None
    return f"{shutil.which(name)} compiles C++20"


def cluster_programs(cluster: str, programs: Iterable[str]) -> str:
    """Lists the programs that only runs with `launch.cluster: CLUSTER` need."""
    here = [name for name in programs if shutil.which(name)]
    absent = [name for name in programs if name not in here]
    parts = [f"{', '.join(here)} installed"] if here else []
    parts += [f"{', '.join(absent)} not installed (needed only for launch.cluster: {cluster})"] if absent else []
    return "; ".join(parts)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
