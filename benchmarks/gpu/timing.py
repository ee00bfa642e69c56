"""Measures the time and memory of calls on a GPU or, for a trial, on a CPU."""

import gc
import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

Call = Callable[[], Any]

ENOUGH_SECONDS = 1.5
"""Rounds end once each variant has run for about this long, or for its number of rounds."""

FEWEST_ROUNDS = 3
MOST_AHEAD_SECONDS = 0.02
CYCLES_PER_SECOND = 2e9
"""A GPU's approximate clock rate, to convert a delay into cycles."""


class DeviceLost(RuntimeError):
    """A CUDA error after which every later CUDA call of this process fails."""


def spread(samples: Iterable[float], digits: int = 5) -> dict[str, Any]:
    """The samples with their median and extremes."""
    values = [float(f"{sample:.{digits}g}") for sample in samples]
    return {
        "median": float(f"{statistics.median(values):.{digits}g}"),
        "least": min(values),
        "most": max(values),
        "samples": values,
    }


def interleaved(calls: Mapping[str, Call], device: torch.device, rounds: int) -> dict[str, dict[str, Any]]:
    """{variant: {"milliseconds": spread, "host_milliseconds": median}, or {"error": reason}}.

    The variants take turns, and each round starts with a different one. On a GPU, `milliseconds` is the device's time
    between two events that are queued while the device is kept busy, so that a slow host does not count.
    `host_milliseconds` is the time to queue the work; it matters if it is the longer of the two. Each variant runs
    twice before it is timed.
    """
    found: dict[str, dict[str, Any]] = {}
    ahead: dict[str, float] = {}
    for name, call in calls.items():
        try:
            call()
            wait(device)
            start = time.perf_counter()
            call()
            ahead[name] = time.perf_counter() - start
            wait(device)
        except Exception as error:
            raise_if_lost(error)
            found[name] = {"error": in_a_line(error)}
            free_memory()
    device_ms: dict[str, list[float]] = {name: [] for name in ahead}
    host_ms: dict[str, list[float]] = {name: [] for name in ahead}
    turns, spent = list(ahead), 0.0
    for number in range(rounds if turns else 0):
        if number >= FEWEST_ROUNDS and spent > ENOUGH_SECONDS * len(turns):
            break
        start = time.perf_counter()
        for name in turns[number % len(turns) :] + turns[: number % len(turns)]:
            milliseconds, host = _timed(calls[name], device, ahead[name])
            device_ms[name].append(milliseconds)
            host_ms[name].append(host)
        spent += time.perf_counter() - start
    for name in turns:
        found[name] = {
            "milliseconds": spread(device_ms[name]),
            "host_milliseconds": float(f"{statistics.median(host_ms[name]):.4g}"),
        }
    return {name: found[name] for name in calls}


def _timed(call: Call, device: torch.device, ahead_seconds: float) -> tuple[float, float]:
    """(the device's milliseconds, the host's)."""
    if device.type != "cuda":
        start = time.perf_counter()
        call()
        taken = 1e3 * (time.perf_counter() - start)
        return taken, taken
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(round(min(1.5 * ahead_seconds + 1e-4, MOST_AHEAD_SECONDS) * CYCLES_PER_SECOND))
    before.record()
    start = time.perf_counter()
    call()
    host = 1e3 * (time.perf_counter() - start)
    after.record()
    after.synchronize()
    return before.elapsed_time(after), host


def step_seconds(step: Call, device: torch.device, count: int) -> list[float]:
    """The seconds of each of `count` consecutive calls; on a GPU the host runs ahead, as in training."""
    wait(device)
    if device.type != "cuda":
        times = [time.perf_counter()]
        for _ in range(count):
            step()
            times.append(time.perf_counter())
        return [after - before for before, after in itertools.pairwise(times)]
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    events[0].record()
    for event in events[1:]:
        step()
        event.record()
    wait(device)
    return [before.elapsed_time(after) / 1e3 for before, after in itertools.pairwise(events)]


def wait(device: torch.device) -> None:
    """Waits until all queued work is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def allocated(device: torch.device) -> int:
    """Bytes that torch has allocated on a GPU; 0 on a CPU, where torch does not count them."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def peak_bytes(call: Call, device: torch.device) -> int | None:
    """Peak bytes that a call allocates in addition to those allocated before; None on a CPU."""
    if device.type != "cuda":
        return None
    free_memory()
    wait(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = allocated(device)
    call()
    wait(device)
    return torch.cuda.max_memory_allocated(device) - before


def free_memory() -> None:
    """Frees the memory that a case or a failure has left."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def raise_if_lost(error: Exception) -> None:
    """Raises DeviceLost if `error` means that CUDA has become unusable in this process."""
    if "CUDA error" in str(error) and not isinstance(error, torch.OutOfMemoryError):
        raise DeviceLost(in_a_line(error)) from error


def in_a_line(error: BaseException) -> str:
    """An exception's type and text on one line of at most 800 characters, for the results."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:800]
