"""A rank of tests/reliability/test_network.py: takes a training step, then lists listening sockets.

    python -m tests.reliability.listening_worker DIRECTORY

Leaves `rank-N.json`: {"backend": ..., "listening": [[process, address, port], ...]} of itself and of what started it.
"""

import json
import os
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

import torch
import torch.distributed as dist

from model.initialization import build_model
from stages.engine.engine import build_engine
from stages.engine.rank_process import run_rank
from tests.stages.checkpoints import small_config
from tests.stages.specs import small_spec

LISTEN = "0A"
"""The state code of a listening socket in /proc/net/tcp."""


def address(words: str) -> str:
    """Parses an address from /proc/net/tcp: 32-bit words, each with its lowest byte first."""
    raw = b"".join(bytes.fromhex(words[i : i + 8])[::-1] for i in range(0, len(words), 8))
    return str(IPv4Address(raw) if len(raw) == 4 else IPv6Address(raw))


def listening(process: int) -> list[tuple[int, str, int]]:
    """(process, address, port) of every TCP socket that a process listens on."""
    mine = set()
    for descriptor in os.listdir(f"/proc/{process}/fd"):
        try:
            mine.add(os.readlink(f"/proc/{process}/fd/{descriptor}"))
        except FileNotFoundError:
            continue  # closed meanwhile
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{process}/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == LISTEN and f"socket:[{inode}]" in mine:
                words, port = local.split(":")
                found.append((process, address(words), int(port, 16)))
    return found


def work(directory: Path, device: torch.device) -> None:
    """Takes one step of a DeepSpeed engine, so that every connection is open."""
    config = small_config()
    spec = small_spec(config, zero_stage=2, batch_size=2, micro_batch_size=1)
    engine = build_engine(build_model(config, seed=0), spec, "fp32")
    tokens = torch.zeros((1, 10), dtype=torch.long, device=device)
    engine.backward(engine(tokens).float().square().mean())
    engine.step()
    dist.barrier()
    told = {"backend": dist.get_backend(), "listening": listening(os.getpid()) + listening(os.getppid())}
    (directory / f"rank-{dist.get_rank()}.json").write_text(json.dumps(told))
    dist.barrier()


if __name__ == "__main__":
    run_rank(work)
