"""The life of a rank: joins the process group, works, and leaves without crashing its interpreter."""

import os
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist

from model.errors import Failure, UserError
from stages.engine.deepspeed_api import deepspeed, default_pg_timeout
from stages.engine.devices import visible_gpus
from stages.process.lifeline import cut_lifeline, end_with_runner

_RANKS = {
    "RANK": ("OMPI_COMM_WORLD_RANK", "SLURM_PROCID"),
    "WORLD_SIZE": ("OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"),
    "LOCAL_RANK": ("OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"),
}
"""The variables that DeepSpeed's launcher sets for a rank, and the names that mpirun and srun use for them."""

LOOPBACK = "127.0.0.1"
"""The address where the ranks of one machine meet; other machines cannot reach it."""


def start_distributed() -> torch.device:
    """Joins the launcher's process group and returns this rank's device: its GPU, or else the CPU.

    If RANK is not set, the variables of mpirun or srun are used.
    """
    if "RANK" not in os.environ:
        for name, others in _RANKS.items():
            for other in others:
                if name not in os.environ and other in os.environ:
                    os.environ[name] = os.environ[other]
    if visible_gpus():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
        _join("nccl", device)
        return device
    # DeepSpeed's all-reduce over shared memory would compile for 40 s at first use; gloo gives the same sums.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    _join("gloo", None)
    return torch.device("cpu")


def _join(backend: str, device: torch.device | None) -> None:
    """Creates the process group, which DeepSpeed then reuses; on several machines DeepSpeed creates it itself."""
    if os.environ.get("MASTER_ADDR") == LOOPBACK:
        store = _loopback_store()
        rank, num_ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        bound = device if num_ranks > 1 else None  # as DeepSpeed does: a single rank has no peer to reach
        dist.init_process_group(
            backend, store=store, rank=rank, world_size=num_ranks, timeout=default_pg_timeout, device_id=bound
        )
    deepspeed.init_distributed(dist_backend=backend)


def _loopback_store() -> dist.TCPStore:
    """The store through which the ranks of this machine meet.

    torch's own store would make rank 0 listen on every address of the machine.
    """
    port, num_ranks, is_first = int(os.environ["MASTER_PORT"]), int(os.environ["WORLD_SIZE"]), os.environ["RANK"] == "0"
    listener = socket.create_server((LOOPBACK, port), backlog=num_ranks).detach() if is_first else None
    return dist.TCPStore(
        LOOPBACK, port, num_ranks, is_first, default_pg_timeout, master_listen_fd=listener, use_libuv=True
    )


def run_rank(work: Callable[[Path, torch.device], None]) -> NoReturn:
    """Calls `work` with the spec file from the command line and this rank's device, then ends the process.

    The exit code is 0, or 1 with the traceback in the log; for a UserError or a Failure the log also gets the message,
    in one line for the user. A rank that fails exits at once, because other ranks may be waiting for it in a
    collective: the launcher ends those on its own machine, and the lifeline ends those on other machines. A rank that
    succeeds skips the interpreter's shutdown, in which native threads sometimes abort the process.
    """
    end_with_runner()
    try:
        work(Path(sys.argv[-1]), start_distributed())
        dist.destroy_process_group()
    except Exception as error:
        with suppress(OSError):  # the log's disk may be full: that may be what went wrong
            traceback.print_exc()
            if isinstance(error, UserError | Failure):
                sys.stderr.write(f"growctl: {error}\n")  # in one write, because other ranks write too
        cut_lifeline()
        _leave(1)
    _leave(0)


def _leave(code: int) -> NoReturn:
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
