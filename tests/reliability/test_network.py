"""Only torch's rendezvous listens on the network, and on a single machine only on the loopback."""

import json
import os
from ipaddress import ip_address
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist

from growctl.launch.local import local_environment, local_launch
from growctl.launch.workers import Workers
from model.initialization import build_model
from stages.engine.engine import build_engine
from stages.engine.rank_process import run_rank
from tests import warm_start
from tests.stages.checkpoints import small_config
from tests.stages.specs import small_spec
from tests.workers import HANG_SECONDS, REPOSITORY


def listening(*processes: int) -> list[tuple[str, int]]:
    """(address, port) of every TCP socket that these processes listen on."""
    sockets = psutil.net_connections("tcp")
    return [tuple(s.laddr) for s in sockets if s.status == psutil.CONN_LISTEN and s.pid in processes]


def work(directory: Path, device: torch.device) -> None:
    """What a rank does: one step, so that every connection is open. It leaves [backend, what listens] in a file."""
    spec = small_spec(small_config(), zero_stage=2, batch_size=2, micro_batch_size=1)
    engine = build_engine(build_model(small_config(), seed=0), spec, "fp32")
    engine.backward(engine(torch.zeros((1, 10), dtype=torch.long, device=device)).float().square().mean())
    engine.step()
    dist.barrier()
    told = [dist.get_backend(), listening(os.getpid(), os.getppid())]
    (directory / f"rank-{dist.get_rank()}.json").write_text(json.dumps(told))
    dist.barrier()


@pytest.mark.trains
def test_two_ranks_on_one_machine_listen_only_on_its_loopback(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setenv(warm_start.VARIABLE, "1")
    launch = local_launch(tmp_path, 2, gpus=False, module="tests.reliability.test_network")
    with Workers(launch, tmp_path / "log.txt") as workers:
        assert workers.wait(HANG_SECONDS) == 0, (tmp_path / "log.txt").read_text()
    told = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in (0, 1)]
    assert [backend for backend, _ in told] == ["gloo", "gloo"]
    found = {tuple(socket) for _, sockets in told for socket in sockets}
    assert len(found) >= 3, found  # where ranks meet, and where each waits for the other
    assert [socket for socket in found if not ip_address(socket[0]).is_loopback] == []


def test_gpus_on_one_machine_use_the_loopback_too(monkeypatch):
    monkeypatch.delenv("NCCL_SOCKET_IFNAME", raising=False)
    environment = local_environment(2, gpus=True)
    assert (environment["NCCL_SOCKET_IFNAME"], environment["GLOO_SOCKET_IFNAME"]) == ("=lo", "lo")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth1")
    assert local_environment(2, gpus=True)["NCCL_SOCKET_IFNAME"] == "eth1"


if __name__ == "__main__":
    run_rank(work)
