"""The worker of `growctl doctor`: one all-reduce over the ranks that a run would use.

Started as a stage is:

    python -m stages.probe.all_reduce SPEC.json

Every rank leaves a file of its own: what is said of a rank does not travel over what is being tested.
"""

import statistics
import time
from pathlib import Path

import torch
import torch.distributed as dist
from pydantic import PositiveInt
from torch import Tensor

from model.strict import Strict
from stages.engine.devices import wait_for
from stages.engine.rank_process import run_rank

PATTERN = 1009
"""Values repeat after as many: a prime, so that no block of a ring looks like its neighbour."""

TIMED = 5
"""All-reduces that are timed, after one that is not."""


class AllReduceSpec(Strict):
    """What a rank is told."""

    directory: str
    """Where each rank leaves its `rank-N.json`."""
    num_elements: PositiveInt
    """float32 values to sum."""


class AllReduceResult(Strict):
    """What a rank found."""

    backend: str
    num_ranks: int
    wrong_elements: int
    """Sums that are not what they must be."""
    seconds: float
    """One all-reduce, the median of several."""


def filled(num_elements: int, rank: int, device: torch.device) -> Tensor:
    """A rank's summands, float32 (num_elements,): small whole numbers, so that every order of adding gives one sum."""
    return (torch.arange(num_elements, device=device) % PATTERN + rank).float()


def expected_sum(num_elements: int, num_ranks: int, device: torch.device) -> Tensor:
    """The sum of what `num_ranks` ranks fill in, exact in float32 up to 16,000 ranks."""
    return num_ranks * filled(num_elements, 0, device) + num_ranks * (num_ranks - 1) // 2


def all_reduce(spec: AllReduceSpec, device: torch.device) -> AllReduceResult:
    """Sums over all ranks, compares every element with what it must be, and times it."""
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    values = filled(spec.num_elements, rank, device)
    dist.all_reduce(values)
    wrong = int((values != expected_sum(spec.num_elements, num_ranks, device)).sum().item())
    seconds = []
    for _ in range(TIMED):
        values.fill_(1.0)
        dist.barrier()
        wait_for(device)
        started = time.monotonic()
        dist.all_reduce(values)
        wait_for(device)
        seconds.append(time.monotonic() - started)
    return AllReduceResult(
        backend=dist.get_backend(), num_ranks=num_ranks, wrong_elements=wrong, seconds=statistics.median(seconds)
    )


def all_reduce_to_file(spec_path: Path, device: torch.device) -> None:
    """What the spec file asks for; every rank writes what it found to a file of its own."""
    spec = AllReduceSpec.model_validate_json(spec_path.read_bytes())
    result = all_reduce(spec, device)
    (Path(spec.directory) / f"rank-{dist.get_rank()}.json").write_text(result.model_dump_json())
    dist.barrier()


if __name__ == "__main__":
    run_rank(all_reduce_to_file)
