"""Runs all checks of a machine in order, including an all-reduce over a run's ranks."""

import math
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Literal

from growctl.doctor import machine
from growctl.doctor.check import Check, Problem, carried_out
from growctl.launch.devices import MOST_CPU_RANKS, gpus_possible, local_devices
from growctl.launch.local import local_environment, local_launch
from growctl.launch.machines import LaunchError
from growctl.launch.worker_logs import failure_reason
from growctl.launch.workers import Workers
from stages.counted import counted
from stages.probe.records import AllReduceResult, AllReduceSpec, MachineFacts
from stages.stage_dir import StagePaths

FLOAT32_BYTES = 4
ALL_REDUCE_BYTES = 64 * 2**20
ALL_REDUCE_SECONDS = 180.0
"""Timeout of the ranks: imports from a slow network disk take minutes."""

FACTS_SECONDS = 120.0
"""Timeout of importing torch and DeepSpeed."""

ANY_BATCH = math.lcm(*range(1, MOST_CPU_RANKS + 1))
"""A batch size that any number of ranks divides."""

NumRanks = Literal["auto"] | int


def diagnose(runs_dir: Path, devices: NumRanks, on_start: Callable[[str], None]) -> Iterator[Check]:
    """Yields every check except that of imports as soon as it is done; calls `on_start(name)` before each.

    Leaves no files behind, except the log of a failed all-reduce.
    """
    on_start("torch and DeepSpeed")
    facts = machine_facts()
    checks: dict[str, Callable[[], str]] = {
        "torch": partial(machine.torch_build, facts),
        "DeepSpeed": partial(machine.deepspeed_import, facts),
        "packages": machine.other_packages,
        "devices": partial(machine.devices, facts),
        "runs directory": partial(machine.runs_directory, runs_dir),
        "disk space": partial(machine.disk_space, runs_dir),
        "shared memory": partial(machine.shared_memory, facts),
        "all-reduce": partial(all_reduce, devices),
    }
    for name, check in checks.items():
        on_start(name)
        yield carried_out(name, check)


def machine_facts() -> MachineFacts | str:
    """The machine as a worker sees it, or the reason why a worker cannot start."""
    command = [sys.executable, "-m", "stages.probe.machine"]
    environment = local_environment(1, gpus=gpus_possible())
    try:
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=FACTS_SECONDS)
        if ended.returncode:
            return (ended.stderr.strip() or f"exit code {ended.returncode}").splitlines()[-1]
        return MachineFacts.model_validate_json(ended.stdout.splitlines()[-1])
    except Exception as error:  # as for any check
        return f"{type(error).__name__}: {error}"


def all_reduce(wanted: NumRanks, num_bytes: int = ALL_REDUCE_BYTES, patience: float = ALL_REDUCE_SECONDS) -> str:
    """Starts the ranks that a run would use, in the same way, and lets them sum a float32 tensor.

    If that fails, their log is kept.
    """
    try:
        devices = local_devices(wanted, ANY_BATCH)
    except LaunchError as error:
        fix = "see torch and devices" if wanted == "auto" else "set --devices to that many or fewer, or to auto"
        raise Problem(str(error), fix) from None
    folder = Path(tempfile.mkdtemp(prefix="growctl-doctor-"))
    spec, log = StagePaths(folder).spec, StagePaths(folder).log
    num_ranks, gpus = devices.per_machine, devices.type == "cuda"
    num_elements = num_bytes // FLOAT32_BYTES
    spec.write_text(AllReduceSpec(directory=str(folder), num_elements=num_elements).model_dump_json())
    log.touch()
    problem = None
    with Workers(local_launch(spec, num_ranks, gpus, module="stages.probe.all_reduce"), log) as workers:
        try:
            if workers.wait(patience):
                problem = failure_reason(log, 0)
        except subprocess.TimeoutExpired:
            problem = f"did not finish within {patience:g} s"
    if problem:
        fix = "in a container, use --ipc=host; else run NCCL_DEBUG=INFO growctl doctor and read" if gpus else "read"
        raise Problem(f"{counted(num_ranks, 'rank')}: {problem}", f"{fix} {log}")
    results = [AllReduceResult.model_validate_json(path.read_bytes()) for path in folder.glob("rank-*.json")]
    what = judged(results, num_ranks, num_bytes)
    shutil.rmtree(folder)
    return what


def judged(results: list[AllReduceResult], num_ranks: int, num_bytes: int) -> str:
    """Judges the ranks' results: all must take part and get correct sums."""
    ranks = counted(num_ranks, "rank")
    wrong = sum(result.wrong_elements > 0 for result in results)
    missing = num_ranks - sum(result.num_ranks == num_ranks for result in results)
    if wrong or missing:
        fix = (
            "do not train here until this is fixed; if it works with NCCL_P2P_DISABLE=1, the links between GPUs are "
            "at fault"
        )
        raise Problem(f"{wrong} of {ranks} got wrong sums; {missing} of {ranks} did not take part", fix)
    backend = results[0].backend
    if num_ranks == 1:
        return f"{backend}: one rank, which starts and has no peers"
    seconds = max(result.seconds for result in results)
    # The bytes that each rank sends, and receives, in an optimal all-reduce.
    bandwidth = 2 * (num_ranks - 1) / num_ranks * num_bytes / seconds
    return (
        f"{backend}, {ranks}: correct sums; {num_bytes // 2**20} MiB in {seconds * 1e3:.3g} ms, "
        f"{bandwidth / 1e9:.3g} GB/s per rank"
    )
