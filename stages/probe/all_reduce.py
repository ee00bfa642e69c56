"""The worker of `growctl doctor`: one all-reduce over the ranks that a run would use.

Started as a stage is:

    python -m stages.probe.all_reduce SPEC.json

Every rank writes its own file, so that no result depends on the communication that is being tested.
"""

import statistics
import time
from pathlib import Path

import torch
import torch.distributed as dist

from stages.engine.devices import wait_for
from stages.engine.rank_process import run_rank
from stages.probe.records import AllReduceResult, AllReduceSpec

PATTERN = 1009
"""The values' period: a prime, so that no block of a ring equals its neighbour."""

TIMED = 5
"""Number of timed all-reduces, after an untimed one."""


def all_reduce(spec: AllReduceSpec, device: torch.device) -> AllReduceResult:
    """Sums over all ranks, counts wrong elements, and times the all-reduce.

    The values are small whole numbers, so every order of addition is exact in float32, up to 16,000 ranks.
    """
    num_ranks = dist.get_world_size()
    pattern = (torch.arange(spec.num_elements, device=device) % PATTERN).float()
    values = pattern + dist.get_rank()
    dist.all_reduce(values)
    wrong = int((values != num_ranks * pattern + num_ranks * (num_ranks - 1) // 2).sum().item())
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
    """Runs `all_reduce` as the spec file describes; every rank writes its result to its own file."""
    spec = AllReduceSpec.model_validate_json(spec_path.read_bytes())
    result = all_reduce(spec, device)
    (Path(spec.directory) / f"rank-{dist.get_rank()}.json").write_text(result.model_dump_json())
    dist.barrier()


if __name__ == "__main__":
    run_rank(all_reduce_to_file)
