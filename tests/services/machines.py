"""Machines for the services to run on: Linux namespaces with their own network, host name, processes and sshd.

A `Network` is a bridge in a network namespace of its own, so the network of the machine underneath never changes. A
`Machine` is a tree of processes whose root is an sshd. Each has its own /etc/hosts, /etc/ssh and /run, mounted where
only it sees them; all other files are the real ones, as on machines that share a file system. Nothing has a name that
could stay behind: the kernel removes namespaces, mounts and links when their last process ends, and all of them end
with this process, however it ends.
"""

import os
import shlex
import shutil
import signal

import subprocess

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

PROGRAMS = ("unshare", "nsenter", "setpriv", "mount", "ip", "ssh", "sshd", "ssh-keygen")
"""What this module runs. sshd is not on every user's PATH."""

START_SECONDS = 20.0
SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
_SUBNET = "10.213.7"


def _ends_with_us(*command: str) -> subprocess.Popen[bytes]:
    """Starts `command` such that the kernel kills it when this process ends."""
    return subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C reaches this process alone, which then ends the machines in order
    )


def _do(*command: str) -> None:
    """Runs a short command; raises AssertionError with its output if it fails."""
    result = subprocess.run(command, capture_output=True, text=True, timeout=START_SECONDS, check=False)
    assert result.returncode == 0, f"{shlex.join(command)}: {result.stdout}{result.stderr}"


def _wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {START_SECONDS:.0f} s"
        time.sleep(0.05)


def _child_of(pid: int) -> int | None:
    """The only child of a process, or None if it has none yet."""
    with suppress(OSError, ValueError):
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text())
    return None


@dataclass
class Network:
    """A bridge, and the files that tell its machines about one another."""

    folder: Path
    switch: int
    """The process that holds the bridge's namespace."""
    machines: "dict[str, Machine]" = field(default_factory=dict)

    @property
    def client_key(self) -> Path:
        """The private key that every machine accepts and that ssh offers on every machine."""
        return self.folder / "client_key"

    @property
    def known_hosts(self) -> Path:
        """The host keys that ssh accepts."""
        return self.folder / "known_hosts"

    def write_known_hosts(self, names: Sequence[str]) -> None:
        """Lets ssh know the host keys of the machines called `names`, and no other."""
        keys = {name: (self.folder / name / "host_key.pub").read_text().split()[:2] for name in names}
        self.known_hosts.write_text("".join(f"{name} {' '.join(key)}\n" for name, key in keys.items()))

    def start(self, name: str) -> "Machine":
        """Starts the machine `name`, or starts it again under its old address and keys."""
        machine = Machine(self, name, self.machines[name].address if name in self.machines else self._free_address())
        self.machines[name] = machine
        hosts = "".join(f"{each.address} {each.name}\n" for each in self.machines.values())
        (self.folder / "hosts").write_text(f"127.0.0.1 localhost\n{hosts}")
        machine.start()
        return machine

    def _free_address(self) -> str:
        return f"{_SUBNET}.{len(self.machines) + 1}"


class Machine:
    """One machine of a network."""

    def __init__(self, network: Network, name: str, address: str) -> None:
        self.network = network
        self.name = name
        self.address = address
        self.folder = network.folder / name
        self._unshare: subprocess.Popen[bytes] | None = None

    @property
    def hardware_address(self) -> str:
        """The network card's address. It outlives a restart, as a real card's does, so the neighbours find it again."""
        return f"02:00:00:00:00:{int(self.address.rpartition('.')[2]):02x}"

    @property
    def pid(self) -> int:
        """The first process of the machine, its sshd."""
        pid = _child_of(self._unshare.pid) if self._unshare else None
        assert pid is not None, f"{self.name} is not running: {self.sshd_log()}"
        return pid

    def start(self) -> None:
        """Starts the machine and connects it; returns once its sshd listens."""
        self._write_etc()
        etc, log = self.folder / "etc-ssh", self.folder / "sshd.log"
        steps = [
            f"hostname {self.name}",
            "ip link set lo up",
            "mount -t tmpfs run /run",
            "mkdir -m 755 /run/sshd",
            f"mount --bind {shlex.quote(str(self.network.folder / 'hosts'))} /etc/hosts",
            f"mount --bind {shlex.quote(str(etc))} /etc/ssh",
            f"exec {SSHD} -D -E {shlex.quote(str(log))}",
        ]
        namespaces = ("--net", "--mount", "--uts", "--pid", "--ipc", "--fork", "--kill-child", "--mount-proc")
        log.unlink(missing_ok=True)
        self._unshare = _ends_with_us("unshare", *namespaces, "sh", "-ec", "\n".join(steps))
        _wait_for(lambda: "Server listening" in self.sshd_log(), f"the start of {self.name}'s sshd")
        port = f"port-{self.name}"
        inside, switch = ("nsenter", "-t", str(self.pid), "--net"), ("nsenter", "-t", str(self.network.switch), "--net")
        peer = ("peer", "name", "lan0", "address", self.hardware_address, "netns", str(self.pid))
        _do(*switch, "ip", "link", "add", port, "type", "veth", *peer)
        _do(*switch, "ip", "link", "set", port, "master", "switch", "up")
        _do(*inside, "ip", "address", "add", f"{self.address}/24", "dev", "lan0")
        _do(*inside, "ip", "link", "set", "lan0", "up")

    def _write_etc(self) -> None:
        etc = self.folder / "etc-ssh"
        etc.mkdir(parents=True, exist_ok=True)
        key = self.folder / "host_key"
        if not key.exists():
            _do("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key))
        (etc / "ssh_config").write_text(
            f"IdentityFile {self.network.client_key}\nIdentitiesOnly yes\nGlobalKnownHostsFile none\n"
            f"UserKnownHostsFile {self.network.known_hosts}\n"
        )
        (etc / "sshd_config").write_text(
            f"HostKey {key}\nAuthorizedKeysFile {self.folder / 'authorized_keys'}\nStrictModes no\n"
            "PermitRootLogin prohibit-password\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
        )
        self.accept_client()

    def accept_client(self, accepts: bool = True) -> None:
        """Lets the client's key log in, or no key."""
        public = self.network.client_key.with_suffix(".pub").read_text()
        (self.folder / "authorized_keys").write_text(public if accepts else "")

    def sshd_log(self) -> str:
        """What the sshd has logged since it was started."""
        log = self.folder / "sshd.log"
        return log.read_text(errors="replace") if log.exists() else ""

    def run(self, *command: object, environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Starts a command on the machine, its output captured."""
        return subprocess.Popen(
            ["nsenter", "-t", str(self.pid), "--all", "--", *map(str, command)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=dict(os.environ) | dict(environment or {}),
            cwd=self.folder,
            start_new_session=True,
        )

    def cut_link(self) -> None:
        """Takes the machine off the network; its processes continue."""
        _do("nsenter", "-t", str(self.pid), "--net", "ip", "link", "set", "lan0", "down")

    def kill(self) -> None:
        """Ends all processes of the machine at once, as a power cut does."""
        if self._unshare:
            with suppress(AssertionError, ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self._unshare.kill()
            self._unshare.wait()


@contextmanager
def network(folder: Path) -> Iterator[Network]:
    """A network without machines, whose files lie in `folder`. Its machines end with the block."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        holder = _ends_with_us("unshare", "--net", "sh", "-ec", "ip link add switch type bridge; ip link set switch up; exec sleep inf")
        stack.callback(holder.wait)
        stack.callback(holder.kill)
        switch = ("nsenter", "-t", str(holder.pid), "--net")
        _wait_for(lambda: subprocess.run([*switch, "ip", "link", "show", "switch"], capture_output=True, check=False).returncode == 0, "the start of the network")
        found = Network(folder, holder.pid)
        _do("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(found.client_key))
        stack.callback(lambda: [machine.kill() for machine in found.machines.values()])
        yield found
