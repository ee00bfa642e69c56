"""Only torch's rendezvous listens on the network, and on a single machine only on the loopback."""

import json
import os
import socket
from ipaddress import ip_address

import pytest

from growctl.launch.local import local_environment, local_launch
from growctl.launch.workers import Workers
from tests.reliability.listening_worker import listening
from tests.workers import HANG_SECONDS, REPOSITORY


@pytest.mark.trains
def test_two_ranks_on_one_machine_listen_only_on_its_loopback(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    launch = local_launch(tmp_path, 2, gpus=False, module="tests.reliability.listening_worker")
    with Workers(launch, tmp_path / "log.txt") as workers:
        assert workers.wait(HANG_SECONDS) == 0, (tmp_path / "log.txt").read_text()
    told = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in (0, 1)]
    assert [rank["backend"] for rank in told] == ["gloo", "gloo"]
    found = {tuple(socket) for rank in told for socket in rank["listening"]}
    assert len(found) >= 3, found  # where ranks meet, and where each waits for the other
    assert [socket for socket in found if not ip_address(socket[1]).is_loopback] == []


def test_a_listening_socket_is_detected():
    """Shows that the test above would fail."""
    for place in ("127.0.0.1", "0.0.0.0", "::1", "::"):
        with socket.create_server((place, 0), family=socket.AF_INET6 if ":" in place else socket.AF_INET) as server:
            assert (os.getpid(), place, server.getsockname()[1]) in listening(os.getpid())


def test_gpus_on_one_machine_use_the_loopback_too(monkeypatch):
    monkeypatch.delenv("NCCL_SOCKET_IFNAME", raising=False)
    environment = local_environment(2, gpus=True)
    assert (environment["NCCL_SOCKET_IFNAME"], environment["GLOO_SOCKET_IFNAME"]) == ("=lo", "lo")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth1")
    assert local_environment(2, gpus=True)["NCCL_SOCKET_IFNAME"] == "eth1"
