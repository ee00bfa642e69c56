"""Machines that share a file system, each a set of Linux namespaces with its own network, processes and sshd.

Their network is a bridge in a network namespace of its own, so nothing changes in the network around it. A machine is a
tree of processes whose first one is an sshd. Each has its own host name, /etc/hosts, /etc/ssh and /run, mounted where
only its processes see them. Nothing has a name that could stay behind: the kernel removes namespaces, mounts and links
with their last process, and all of these end with this process, however it ends.
"""

import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.services.processes import environment, output_of, search_path, wait_until

PROGRAMS = ("unshare", "nsenter", "setpriv", "ip", "ssh", "sshd", "ssh-keygen")
"""What this module runs."""

_BRIDGE = "switch"
_CONFIGURATION = {
    "ssh_config": "IdentityFile {etc}/key\nIdentitiesOnly yes\nGlobalKnownHostsFile none\n"
    "UserKnownHostsFile {etc}/known_hosts\n",
    "sshd_config": "HostKey {etc}/key\nAuthorizedKeysFile {etc}/key.pub\nStrictModes no\n"
    "PermitRootLogin prohibit-password\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n",
}
"""One key identifies every machine and logs in on every machine."""


def child_of(pid: int) -> int | None:
    """The only child of a process, or None if it has none."""
    with suppress(OSError, ValueError):
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text())
    return None


def _start(*command: str) -> subprocess.Popen[bytes]:
    """Starts `command` such that the kernel kills it when this process ends. Ctrl-C does not reach it."""
    nothing = subprocess.DEVNULL
    killed_with_us = ["setpriv", "--pdeathsig", "KILL", *command]
    return subprocess.Popen(
        killed_with_us, stdin=nothing, stdout=nothing, stderr=nothing, env=environment(), start_new_session=True
    )


class Machine:
    """One machine of a network, whose bridge is in the namespace of the process `switch`."""

    def __init__(self, folder: Path, switch: int, name: str, number: int) -> None:
        self.folder, self.switch, self.name, self.number = folder, switch, name, number
        self._log = folder / f"{name}-sshd.log"
        self._unshare: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"10.213.7.{self.number}"

    @property
    def pid(self) -> int:
        """The first process of the machine."""
        pid = child_of(self._unshare.pid) if self._unshare else None
        assert pid is not None, f"{self.name} is not running: {self._logged()}"
        return pid

    def start(self) -> None:
        """Starts the machine, also again, with the same address and key; returns once its sshd listens."""
        self.kill()
        hosts, etc, log = (shlex.quote(str(path)) for path in (self.folder / "hosts", self.folder / "etc", self._log))
        steps = [
            f"hostname {self.name}",
            "ip link set lo up",
            "mount -t tmpfs -o mode=755 none /run",
            "mkdir /run/sshd",
            f"mount --bind {hosts} /etc/hosts",
            f"mount --bind {etc} /etc/ssh",
            "[ ! -d ~/.ssh ] || mount -t tmpfs none ~/.ssh",
            f"exec {shutil.which('sshd', path=search_path())} -D -E {log}",
        ]
        own = ("--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc")
        self._log.unlink(missing_ok=True)
        self._unshare = _start("unshare", *own, "sh", "-ec", "\n".join(steps))
        wait_until(lambda: "Server listening" in self._logged(), f"{self.name}'s sshd listens")
        self._connect()

    def _connect(self) -> None:
        port, lan = f"port-{self.number}", ["nsenter", "-t", str(self.switch), "--net", "ip", "link"]
        card = f"02:00:00:00:00:{self.number:02x}"  # outlives a restart, so that the neighbours find the machine again
        peer = ["peer", "name", "lan0", "address", card, "netns", str(self.pid)]
        output_of([*lan, "delete", port], code=None)  # the kernel may not have removed that of a killed machine yet
        output_of([*lan, "add", port, "type", "veth", *peer])
        output_of([*lan, "set", port, "master", _BRIDGE, "up"])
        self._inside("net", "ip", "address", "add", f"{self.address}/24", "dev", "lan0")
        self._inside("net", "ip", "link", "set", "lan0", "up")

    def _inside(self, namespace: str, *command: str) -> None:
        output_of(["nsenter", "-t", str(self.pid), f"--{namespace}", *command])

    def run(self, command: Sequence[object], variables: Mapping[str, str]) -> subprocess.Popen[str]:
        """Starts a command on the machine; both its streams are in one pipe."""
        return subprocess.Popen(
            ["nsenter", "-t", str(self.pid), "--all", "--", *map(str, command)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment(**variables),
            start_new_session=True,
        )

    def cut_link(self) -> None:
        """Takes the machine off the network, as a pulled cable does. Its processes continue."""
        self._inside("net", "ip", "link", "set", "lan0", "down")

    def kill(self) -> None:
        """Ends all processes of the machine at once."""
        if self._unshare:
            with suppress(AssertionError, ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self._unshare.kill()
            self._unshare.wait()
            self._unshare = None

    def _logged(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""


@contextmanager
def started_machines(folder: Path, *names: str) -> Iterator[list[Machine]]:
    """Machines that reach each other by ssh, with their files in `folder`. They end with the block."""
    etc, ready = folder / "etc", folder / "switch-is-ready"
    etc.mkdir()
    output_of(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", etc / "key"])
    (etc / "known_hosts").write_text(f"* {(etc / 'key.pub').read_text()}")
    for name, text in _CONFIGURATION.items():
        (etc / name).write_text(text.format(etc=etc))
    steps = f"ip link add {_BRIDGE} type bridge; ip link set {_BRIDGE} up; touch {shlex.quote(str(ready))}"
    switch = _start("unshare", "--net", "sh", "-ec", f"{steps}; exec sleep inf")
    machines = [Machine(folder, switch.pid, name, number) for number, name in enumerate(names, 1)]
    hosts = "".join(f"{machine.address} {machine.name}\n" for machine in machines)
    (folder / "hosts").write_text(f"127.0.0.1 localhost\n{hosts}")
    try:
        wait_until(ready.exists, "the bridge is up")
        for machine in machines:
            machine.start()
        yield machines
    finally:
        for machine in machines:
            machine.kill()
        switch.kill()
        switch.wait()
