"""Checks of what is installed: Python, packages, the compiler, clusters' programs."""

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
from stages.probe.machine_facts import MachineFacts

HOSTFILE_PROGRAMS = ("pdsh", "ssh", "mpirun")

_CPP = "#include <concepts>\n#include <vector>\nint main() { return std::vector<int>(1).size() == 1 ? 0 : 1; }\n"
"""A little C++20, which is what torch's headers are written in."""


def requirements() -> tuple[SpecifierSet, dict[str, Requirement]]:
    """growctl's own, installed or of the checkout: the Python it needs, and each package by name."""
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
    """The version of a package as its installer knows it; None where it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def python_version(version: str, allowed: SpecifierSet) -> Check:
    """The Python that growctl runs in, and that its workers get."""
    found = f"{version} ({sys.executable})"
    if not allowed.contains(version, prereleases=True):
        return Check("Python", "failed", found, f"growctl needs Python {allowed}; install it into one of those")
    return Check("Python", "ok", found)


def package(label: str, needed: Requirement, version: str | None) -> Check:
    """One package: there, and in the range that growctl was tested with."""
    fix = f"pip install '{needed.name}{needed.specifier}'"
    if version is None:
        return Check(label, "failed", "not installed", fix)
    if not needed.specifier.contains(version, prereleases=True):
        return Check(label, "failed", f"{version}; growctl needs {needed.specifier}", fix)
    return Check(label, "ok", version)


def other_packages(needed: Mapping[str, Requirement], versions: Mapping[str, str | None]) -> Check:
    """All of `needed` at once; `versions` as `installed_version` gives them."""
    checks = {name: package(name, each, versions[name]) for name, each in needed.items()}
    bad = {name: check for name, check in checks.items() if check.state != "ok"}
    if bad:
        wanted = " ".join(f"'{name}{needed[name].specifier}'" for name in bad)
        found = "; ".join(f"{name} {check.found}" for name, check in bad.items())
        return Check("packages", "failed", found, f"pip install {wanted}")
    return Check("packages", "ok", f"{len(checks)} others, all in the ranges that growctl allows")


def torch_build(check: Check, facts: MachineFacts) -> Check:
    """What torch was built for, against what the driver runs; `check` is of its version."""
    uses_gpus = any(device.kind == "cuda" for device in facts.devices)
    built = f"CUDA {facts.cuda}" if facts.cuda else f"ROCm {facts.hip}" if facts.hip else "CPUs"
    driver = f"the driver runs CUDA up to {facts.driver}" if facts.driver else "no NVIDIA driver here"
    found = f"{check.found}, built for {built}; {driver}"
    if check.state != "ok" or uses_gpus or facts.driver is None or facts.problem:
        return Check("torch", check.state, found, check.fix)
    if facts.cuda is None:
        fix = "runs would train on the CPU; install a build for CUDA: https://pytorch.org/get-started/locally"
    elif _numbers(facts.driver) < _numbers(facts.cuda):
        fix = f"update the NVIDIA driver, or install a torch built for CUDA {facts.driver} or older"
    else:
        fix = "torch sees no GPU: look at nvidia-smi and CUDA_VISIBLE_DEVICES; in a container, start it with --gpus all"
    return Check("torch", "warning", found, fix)


def deepspeed_import(check: Check, facts: MachineFacts) -> Check:
    """Whether DeepSpeed, of the version that `check` is about, can be imported."""
    if facts.problem is None or check.state != "ok":
        return check
    fix = "pip install --force-reinstall --no-deps deepspeed, after what the message asks for"
    return Check(check.name, "failed", f"{check.found} cannot be imported: {facts.problem}", fix)


def compiler(environment: Mapping[str, str]) -> Check:
    """The C++ compiler: there, and with its headers."""
    name = environment.get("CXX") or "c++"
    path = shutil.which(name, path=environment.get("PATH"))
    use = "training does not need one, DeepSpeed's and Triton's own operators do"
    install = "install one (apt install g++, dnf install gcc-c++), or point CXX to it"
    if path is None:
        return Check("C++ compiler", "warning", f"{name} is not here; {use}", install)
    version = run_command([path, "--version"], dict(environment)).stdout.splitlines()[:1]
    compiled = run_command([path, "-std=c++20", "-fsyntax-only", "-x", "c++", "-"], dict(environment), _CPP)
    if compiled.code:
        found = f"{path} does not compile C++20: {compiled.last_error}; {use}"
        return Check("C++ compiler", "warning", found, install.replace("one", "a newer one, with its headers", 1))
    return Check("C++ compiler", "ok", f"{path}: {' '.join(version)}")


def ninja(environment: Mapping[str, str], scripts: Path | None = None) -> Check:
    """ninja, which torch builds operators with; `scripts` is where pip puts programs."""
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
    return Check("ninja", "warning", "not here; torch builds operators with it", "pip install ninja")


def cluster_programs(environment: Mapping[str, str]) -> list[Check]:
    """Programs that only clusters need: never a failure here."""

    def check(cluster: str, programs: tuple[str, ...]) -> Check:
        here = [name for name in programs if shutil.which(name, path=environment.get("PATH"))]
        absent = [name for name in programs if name not in here]
        parts = [f"{', '.join(here)} here"] * bool(here)
        parts += [f"{', '.join(absent)} not here (needed only for launch.cluster: {cluster})"] * bool(absent)
        return Check(f"{cluster} tools", "ok", "; ".join(parts))

    return [check("hostfile", HOSTFILE_PROGRAMS), check("slurm", tuple(SLURM_PROGRAMS))]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
