"""Checks of installed software: Python, packages, the compiler, cluster programs."""

import importlib.metadata
import shutil
import sys
import sysconfig
import tomllib
from collections.abc import Mapping
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from growctl.doctor.check import Check, run_command
from growctl.doctor.imports import ROOT
from growctl.launch.slurm_machines import PROGRAMS as SLURM_PROGRAMS
from stages.counted import counted
from stages.probe.machine_facts import MachineFacts

HOSTFILE_PROGRAMS = ("pdsh", "ssh", "mpirun")

_CPP = "#include <concepts>\n#include <vector>\nint main() { return std::vector<int>(1).size() == 1 ? 0 : 1; }\n"
"""A small C++20 program: torch's headers need C++20."""


def requirements() -> tuple[SpecifierSet, dict[str, Requirement]]:
    """growctl's requirements, from its installation or checkout: the Python versions, and each package by name."""
    try:
        own = importlib.metadata.metadata("growctl")
        python, texts = own["Requires-Python"], importlib.metadata.requires("growctl") or []
    except importlib.metadata.PackageNotFoundError:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        python, texts = project["requires-python"], project["dependencies"]
    needed = [Requirement(text) for text in texts]
    named = {each.name: each for each in needed if each.marker is None or each.marker.evaluate({"extra": ""})}
    return SpecifierSet(python), named


def installed_version(name: str) -> str | None:
    """The installed version of a package; None if it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def python_version(version: str, allowed: SpecifierSet) -> Check:
    """Checks the Python that growctl and its workers run in."""
    found = f"{version} ({sys.executable})"
    if not allowed.contains(version, prereleases=True):
        return Check("Python", "failed", found, f"growctl needs Python {allowed}; install growctl into one of those")
    return Check("Python", "ok", found)


def package(label: str, needed: Requirement, version: str | None) -> Check:
    """Checks one package: installed, and in the range that growctl was tested with."""
    fix = f"pip install '{needed.name}{needed.specifier}'"
    if version is None:
        return Check(label, "failed", "not installed", fix)
    if not needed.specifier.contains(version, prereleases=True):
        return Check(label, "failed", f"{version}; growctl needs {needed.specifier}", fix)
    return Check(label, "ok", version)


def other_packages(needed: Mapping[str, Requirement], versions: Mapping[str, str | None]) -> Check:
    """Checks all packages in `needed` at once; `versions` come from `installed_version`."""
    checks = {name: package(name, each, versions[name]) for name, each in needed.items()}
    bad = {name: check for name, check in checks.items() if check.state != "ok"}
    if bad:
        wanted = " ".join(f"'{name}{needed[name].specifier}'" for name in bad)
        found = "; ".join(f"{name} {check.found}" for name, check in bad.items())
        return Check("packages", "failed", found, f"pip install {wanted}")
    return Check("packages", "ok", f"{counted(len(checks), 'other')}, all in the ranges that growctl allows")


def torch_build(check: Check, facts: MachineFacts) -> Check:
    """Compares what torch was built for with what the driver supports; `check` is that of torch's version."""
    uses_gpus = any(device.kind == "cuda" for device in facts.devices)
    built = f"CUDA {facts.cuda}" if facts.cuda else f"ROCm {facts.hip}" if facts.hip else "CPUs"
    driver = f"the driver supports CUDA up to {facts.driver}" if facts.driver else "no NVIDIA driver here"
    found = f"{check.found}, built for {built}; {driver}"
    if check.state != "ok" or uses_gpus or facts.driver is None or facts.problem:
        return Check("torch", check.state, found, check.fix)
    if facts.cuda is None:
        fix = "runs would train on the CPU; install a build for CUDA: https://pytorch.org/get-started/locally"
    elif _numbers(facts.driver) < _numbers(facts.cuda):
        fix = f"update the NVIDIA driver, or install a torch built for CUDA {facts.driver} or older"
    else:
        fix = "torch finds no GPU: check nvidia-smi and CUDA_VISIBLE_DEVICES; start a container with --gpus all"
    return Check("torch", "warning", found, fix)


def deepspeed_import(check: Check, facts: MachineFacts) -> Check:
    """Checks whether DeepSpeed can be imported; `check` is that of its version."""
    if facts.problem is None or check.state != "ok":
        return check
    fix = "install what the message asks for, then run pip install --force-reinstall --no-deps deepspeed"
    return Check(check.name, "failed", f"{check.found} cannot be imported: {facts.problem}", fix)


def compiler(environment: Mapping[str, str]) -> Check:
    """Checks the C++ compiler: installed, and with its headers."""
    name = environment.get("CXX") or "c++"
    path = shutil.which(name, path=environment.get("PATH"))
    use = "training does not need one, but DeepSpeed's and Triton's own operators do"
    install = "install one (apt install g++, dnf install gcc-c++), or set CXX to its path"
    if path is None:
        return Check("C++ compiler", "warning", f"{name} is not installed; {use}", install)
    version = run_command([path, "--version"], dict(environment)).stdout.splitlines()[:1]
    compiled = run_command([path, "-std=c++20", "-fsyntax-only", "-x", "c++", "-"], dict(environment), _CPP)
    if compiled.code:
        found = f"{path} does not compile C++20: {compiled.last_error}; {use}"
        return Check("C++ compiler", "warning", found, install.replace("one", "a newer one, with its headers", 1))
    return Check("C++ compiler", "ok", f"{path}: {' '.join(version)}")


def ninja(environment: Mapping[str, str], scripts: Path | None = None) -> Check:
    """Checks ninja, with which torch builds operators; `scripts` is where pip installs programs."""
    path = shutil.which("ninja", path=environment.get("PATH"))
    installed = (scripts or Path(sysconfig.get_path("scripts"))) / "ninja"
    if path is not None:
        version = run_command([path, "--version"], dict(environment))
        if version.code == 0:
            return Check("ninja", "ok", f"{version.stdout.strip()} ({path})")
        return Check(
            "ninja", "warning", f"{path} does not start: {version.last_error}", "pip install --force-reinstall ninja"
        )
    if installed.is_file():
        found = f"{installed} is not on PATH, where torch looks for it to build operators"
        return Check("ninja", "warning", found, f"activate the environment, or add {installed.parent} to PATH")
    return Check("ninja", "warning", "not installed; torch builds operators with it", "pip install ninja")


def cluster_programs(environment: Mapping[str, str]) -> list[Check]:
    """Lists the programs that only clusters need; the state is always ok."""

    def check(cluster: str, programs: tuple[str, ...]) -> Check:
        here = [name for name in programs if shutil.which(name, path=environment.get("PATH"))]
        absent = [name for name in programs if name not in here]
        parts = [f"{', '.join(here)} installed"] * bool(here)
        parts += [f"{', '.join(absent)} not installed (needed only for launch.cluster: {cluster})"] * bool(absent)
        return Check(f"{cluster} tools", "ok", "; ".join(parts))

    return [check("hostfile", HOSTFILE_PROGRAMS), check("slurm", tuple(SLURM_PROGRAMS))]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
