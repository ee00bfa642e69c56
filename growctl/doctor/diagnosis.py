"""Runs all checks of a machine in order, including an all-reduce over a run's ranks."""

import json
import math
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from growctl.doctor import machine, software
from growctl.doctor.check import Check, carried_out, run_command
from growctl.launch.devices import MOST_CPU_RANKS, gpus_possible, local_devices
from growctl.launch.local import local_environment, local_launch
from growctl.launch.machines import LaunchError
from growctl.launch.worker_logs import failure_reason
from growctl.launch.workers import Workers
from stages.counted import counted
from stages.probe.machine_facts import MachineFacts
from stages.stage_dir import StagePaths

FLOAT32_BYTES = 4
ALL_REDUCE_BYTES = 64 * 2**20
ALL_REDUCE_SECONDS = 180.0
"""Timeout of the ranks: imports from a slow network disk take minutes."""

FACTS_SECONDS = 120.0
"""Timeout of importing torch and DeepSpeed."""

ANY_BATCH = math.lcm(*range(1, MOST_CPU_RANKS + 1))
"""A batch size that any number of ranks divides."""

Devices = Literal["auto"] | int


def diagnose(runs_dir: Path, devices: Devices, on_start: Callable[[str], None]) -> Iterator[Check]:
    """Yields every check except that of imports as soon as it is done; calls `on_start(name)` before slow ones.

    Leaves no files behind, except the log of a failed all-reduce.
    """
    yield carried_out("Python", _python)
    on_start("torch and DeepSpeed")
    facts = _machine_facts()
    yield carried_out("torch", partial(_torch, facts))
    yield carried_out("DeepSpeed", partial(_deepspeed, facts))
    yield carried_out("packages", _others)
    on_start("C++ compiler")
    yield carried_out("C++ compiler", partial(software.compiler, os.environ))
    yield carried_out("ninja", partial(software.ninja, os.environ))
    yield carried_out("devices", partial(_devices, facts))
    on_start("the runs directory")
    writable = carried_out("runs directory", partial(machine.runs_directory, runs_dir))
    yield writable
    if writable.state == "ok":
        yield carried_out("disk space", partial(machine.disk_space, runs_dir))
        yield carried_out("disk speed", partial(machine.disk_speed, runs_dir))
        yield carried_out("file system", partial(machine.file_system, runs_dir))
    yield carried_out("open files", lambda: machine.open_files(*resource.getrlimit(resource.RLIMIT_NOFILE)))
    yield carried_out("shared memory", partial(_shared_memory, facts))
    yield from software.cluster_programs(os.environ)
    on_start("all-reduce, with real ranks")
    yield carried_out("all-reduce", partial(all_reduce, devices))


def all_reduce(wanted: Devices, num_bytes: int = ALL_REDUCE_BYTES, patience: float = ALL_REDUCE_SECONDS) -> Check:
    """Starts the ranks that a run would use, in the same way, and lets them sum a float32 tensor.

    If that fails, their log is kept.
    """
    try:
        found = local_devices(wanted, ANY_BATCH)
    except LaunchError as error:
        fix = "see torch and devices" if wanted == "auto" else "set --devices to that many or fewer, or to auto"
        return Check("all-reduce", "failed", str(error), fix)
    folder = Path(tempfile.mkdtemp(prefix="growctl-doctor-"))
    check = None
    try:
        check = _all_reduce(folder, found.per_machine, found.type == "cuda", num_bytes, patience)
        return check
    finally:
        if check is None or check.state == "ok":
            shutil.rmtree(folder)


def _all_reduce(folder: Path, num_ranks: int, gpus: bool, num_bytes: int, patience: float) -> Check:
    spec, log = StagePaths(folder).spec, StagePaths(folder).log
    spec.write_text(json.dumps({"directory": str(folder), "num_elements": num_bytes // FLOAT32_BYTES}))
    log.touch()
    problem = None
    with Workers(local_launch(spec, num_ranks, gpus, module="stages.probe.all_reduce"), log) as workers:
        try:
            if workers.wait(patience):
                problem = failure_reason(log, 0)
        except subprocess.TimeoutExpired:
            problem = f"did not finish within {patience:g} s"
    if problem is None:
        results = [json.loads(path.read_text()) for path in sorted(folder.glob("rank-*.json"))]
        return judged(results, num_ranks, num_bytes)
    fix = "in a container, use --ipc=host; else run NCCL_DEBUG=INFO growctl doctor and read" if gpus else "read"
    return Check("all-reduce", "failed", f"{counted(num_ranks, 'rank')}: {problem}", f"{fix} {log}")


def judged(results: Sequence[Mapping[str, Any]], num_ranks: int, num_bytes: int) -> Check:
    """Judges the ranks' results (stages.probe.all_reduce.AllReduceResult): all must take part and get correct sums."""
    wrong = [result["wrong_elements"] for result in results if result["wrong_elements"]]
    missing = num_ranks - sum(result["num_ranks"] == num_ranks for result in results)
    backend = results[0]["backend"] if results else "no backend"
    if wrong or missing:
        problems = [f"{len(wrong)} of {counted(num_ranks, 'rank')} got wrong sums"] if wrong else []
        problems += [f"{missing} of {counted(num_ranks, 'rank')} did not take part"] if missing else []
        fix = (
            "do not train here until this is fixed; if it works with NCCL_P2P_DISABLE=1, the links between GPUs are "
            "at fault"
        )
        return Check("all-reduce", "failed", f"{backend}: {'; '.join(problems)}", fix)
    if num_ranks == 1:
        return Check("all-reduce", "ok", f"{backend}: one rank, which starts and has no peers")
    seconds = max(result["seconds"] for result in results)
    # The bytes that each rank sends, and receives, in an optimal all-reduce.
    bandwidth = 2 * (num_ranks - 1) / num_ranks * num_bytes / seconds
    return Check(
        "all-reduce",
        "ok",
        f"{backend}, {counted(num_ranks, 'rank')}: correct sums; {num_bytes // 2**20} MiB in {seconds * 1e3:.3g} ms, "
        f"{bandwidth / 1e9:.3g} GB/s per rank",
    )


def _machine_facts() -> MachineFacts | str:
    """The machine as a worker sees it, or the reason why a worker cannot start."""
    try:
        output = run_command(
            [sys.executable, "-m", "stages.probe.machine"],
            local_environment(1, gpus=gpus_possible()),
            seconds=FACTS_SECONDS,
        )
        if output.code:
            return output.last_error
        return MachineFacts.model_validate_json(output.stdout.splitlines()[-1])
    except Exception as error:  # as for any check
        return f"{type(error).__name__}: {error}"


def _python() -> Check:
    allowed, _ = software.requirements()
    return software.python_version(platform.python_version(), allowed)


def _torch(facts: MachineFacts | str) -> Check:
    _, needed = software.requirements()
    check = software.package("torch", needed["torch"], software.installed_version("torch"))
    if check.state != "ok" or not isinstance(facts, str):
        return check if isinstance(facts, str) else software.torch_build(check, facts)
    return Check("torch", "failed", f"{check.found} cannot be used: {facts}", "pip install --force-reinstall torch")


def _deepspeed(facts: MachineFacts | str) -> Check:
    _, needed = software.requirements()
    check = software.package("DeepSpeed", needed["deepspeed"], software.installed_version("deepspeed"))
    return check if isinstance(facts, str) else software.deepspeed_import(check, facts)


def _others() -> Check:
    _, needed = software.requirements()
    others = {name: each for name, each in needed.items() if name not in ("torch", "deepspeed")}
    return software.other_packages(others, {name: software.installed_version(name) for name in others})


def _devices(facts: MachineFacts | str) -> Check:
    if isinstance(facts, str):
        return Check("devices", "failed", f"unknown: {facts}", "see torch")
    return machine.devices(facts, len(os.sched_getaffinity(0)), machine.cpu_quota())


def _shared_memory(facts: MachineFacts | str) -> Check:
    gpus = [] if isinstance(facts, str) else [device for device in facts.devices if device.kind == "cuda"]
    return machine.shared_memory(len(gpus))
