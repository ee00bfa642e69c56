"""Machines that share a file system, each a set of Linux namespaces with its own network, processes and sshd.

A `Network` is a bridge in a network namespace of its own, so nothing changes in the network around it. A `Machine` is a
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

from tests.services.processes import environment, output_of, wait_until
from tests.services.service import search_path

PROGRAMS = ("unshare", "nsenter", "setpriv", "ip", "ssh", "sshd", "ssh-keygen")
"""What this module runs."""

_SUBNET = "10.213.7"
_BRIDGE = "switch"


def child_of(pid: int) -> int | None:
    """The only child of a process, or None if it has none."""
    with suppress(OSError, ValueError):
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text())
    return None


def _start(*command: str) -> subprocess.Popen[bytes]:
    """Starts `command` such that the kernel kills it when this process ends. Ctrl-C does not reach it."""
    return subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment(),
        start_new_session=True,
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _make_key(path: Path) -> None:
    output_of(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path])


class Network:
    """A bridge, and the files that its machines share: who has which address, and which keys are known."""

    def __init__(self, folder: Path, switch: int) -> None:
        """`switch` is the process that holds the namespace of the bridge."""
        self.folder = folder
        self.switch = switch
        self.machines: dict[str, Machine] = {}
        self.client_key = folder / "client_key"
        """The private key that ssh offers on every machine."""
        self.known_hosts = folder / "known_hosts"
        """The host keys that ssh accepts on every machine."""
        _make_key(self.client_key)

    def add(self, name: str) -> "Machine":
        """Starts a new machine, which all machines know by its name and its host key."""
        machine = self.machines[name] = Machine(self, name, len(self.machines) + 1)
        hosts = "".join(f"{each.address} {each.name}\n" for each in self.machines.values())
        (self.folder / "hosts").write_text(f"127.0.0.1 localhost\n{hosts}")
        machine.start()
        self.know(self.machines)
        return machine

    def know(self, names: Sequence[str] | Mapping[str, object]) -> None:
        """Lets ssh accept the host keys of these machines, and no other."""
        keys = {name: (self.folder / name / "host_key.pub").read_text().split()[:2] for name in names}
        self.known_hosts.write_text("".join(f"{name} {' '.join(key)}\n" for name, key in keys.items()))


class Machine:
    """One machine of a network."""

    def __init__(self, network: Network, name: str, number: int) -> None:
        self.network = network
        self.name = name
        self.address = f"{_SUBNET}.{number}"
        self._card = f"02:00:00:00:00:{number:02x}"
        """The address of the network card. It outlives a restart, so that the neighbours find the machine again."""
        self._port = f"port-{number}"
        self.folder = network.folder / name
        self.folder.mkdir()
        self._etc = self.folder / "etc-ssh"
        self._etc.mkdir()
        self._log = self.folder / "sshd.log"
        self._unshare: subprocess.Popen[bytes] | None = None
        _make_key(self.folder / "host_key")
        self.accept_client()

    @property
    def pid(self) -> int:
        """The first process of the machine."""
        pid = child_of(self._unshare.pid) if self._unshare else None
        assert pid is not None, f"{self.name} is not running: {self._logged()}"
        return pid

    def start(self) -> None:
        """Starts the machine, also again, and connects it; returns once its sshd listens."""
        (self._etc / "ssh_config").write_text(
            f"IdentityFile {self.network.client_key}\nIdentitiesOnly yes\nGlobalKnownHostsFile none\n"
            f"UserKnownHostsFile {self.network.known_hosts}\n"
        )
        (self._etc / "sshd_config").write_text(
            f"HostKey {self.folder / 'host_key'}\nAuthorizedKeysFile {self.folder / 'authorized_keys'}\n"
            "StrictModes no\nPermitRootLogin prohibit-password\n"
            "PasswordAuthentication no\nKbdInteractiveAuthentication no\n"
        )
        hosts, etc, log = (shlex.quote(str(path)) for path in (self.network.folder / "hosts", self._etc, self._log))
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
        lan = ["nsenter", "-t", str(self.network.switch), "--net", "ip", "link"]
        inside = ["nsenter", "-t", str(self.pid), "--net", "ip"]
        peer = ["peer", "name", "lan0", "address", self._card, "netns", str(self.pid)]
        output_of(
            [*lan, "delete", self._port], code=None
        )  # the kernel may not have removed that of a killed machine yet
        output_of([*lan, "add", self._port, "type", "veth", *peer])
        output_of([*lan, "set", self._port, "master", _BRIDGE, "up"])
        output_of([*inside, "address", "add", f"{self.address}/24", "dev", "lan0"])
        output_of([*inside, "link", "set", "lan0", "up"])

    def accept_client(self, accepts: bool = True) -> None:
        """Lets the client's key log in, or nobody."""
        public = self.network.client_key.with_suffix(".pub").read_text()
        (self.folder / "authorized_keys").write_text(public if accepts else "")

    def hide(self, folder: str) -> None:
        """Makes a folder empty on this machine, until it starts again."""
        output_of(["nsenter", "-t", str(self.pid), "--mount", "mount", "-t", "tmpfs", "none", folder])

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
        output_of(["nsenter", "-t", str(self.pid), "--net", "ip", "link", "set", "lan0", "down"])

    def kill(self) -> None:
        """Ends all processes of the machine at once."""
        if self._unshare:
            with suppress(AssertionError, ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            _end(self._unshare)
            self._unshare = None

    def restart(self) -> None:
        """Starts the machine again, with the same address and keys."""
        self.kill()
        self.start()

    def _logged(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""


@contextmanager
def network(folder: Path) -> Iterator[Network]:
    """A network without machines, with its files in `folder`. Its machines end with the block."""
    ready = folder / "switch-is-ready"
    steps = f"ip link add {_BRIDGE} type bridge; ip link set {_BRIDGE} up; touch {shlex.quote(str(ready))}"
    switch = _start("unshare", "--net", "sh", "-ec", f"{steps}; exec sleep inf")
    made = None
    try:
        wait_until(ready.exists, "the bridge is up")
        made = Network(folder, switch.pid)
        yield made
    finally:
        for machine in made.machines.values() if made else ():
            machine.kill()
        _end(switch)
