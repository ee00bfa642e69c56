"""Checks whether the runs directory or the home directory lies on a network file system."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from growctl.doctor.check import Check

MOUNTS = Path("/proc/mounts")

NETWORK_TYPES = frozenset(
    {
        *("nfs", "nfs3", "nfs4", "cifs", "smb3", "smbfs", "afs", "9p", "lustre", "gpfs", "beegfs", "ceph", "glusterfs"),
        *("panfs", "orangefs", "pvfs2", "wekafs", "ocfs2", "gfs2", "davfs"),
        *("fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.ceph-fuse", "fuse.beegfs", "fuse.s3fs", "fuse.goofys"),
        *("fuse.gcsfuse", "fuse.blobfuse", "fuse.blobfuse2", "fuse.rclone", "fuse.juicefs", "fuse.davfs"),
        *("fuse.mount-s3", "fuse.seaweedfs"),
    }
)
"""Types of file systems, as /proc/mounts names them, whose files lie on another machine."""

CACHES = {
    "TRITON_CACHE_DIR": ".triton/cache",
    "TORCH_EXTENSIONS_DIR": ".cache/torch_extensions",
}
"""Environment variables of the folders for compiled code, each with its default in the home directory."""

_OCTAL = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """A file system and where it is mounted."""

    type: str
    place: Path

    @property
    def is_network(self) -> bool:
        """Whether its files lie on another machine."""
        return self.type in NETWORK_TYPES


def mount_of(path: Path, mounts: Path = MOUNTS) -> Mount | None:
    """The file system that holds `path`, or will hold it; None if `mounts` does not say. OSError if it is unreadable.

    `mounts` has the form of /proc/mounts. Of several file systems mounted at one place, the last one counts.
    """
    resolved, found = Path(os.path.realpath(path)), None
    for line in mounts.read_text(errors="surrogateescape").splitlines():
        fields = line.split()
        if len(fields) < 3:
            continue
        place = Path(_OCTAL.sub(lambda code: chr(int(code[1], 8)), fields[1]))
        if resolved.is_relative_to(place) and (found is None or place.is_relative_to(found.place)):
            found = Mount(fields[2], place)
    return found


def runs_mount(runs_dir: Path, mounts: Path = MOUNTS) -> Check:
    """Warns of runs on a network file system. Several machines need one; a single machine does not."""
    name = "runs mount"
    mount = mount_of(runs_dir, mounts)
    if mount is None or not mount.is_network:
        return Check(name, "ok", _described(runs_dir, mount))
    found = (
        f"{runs_dir} is on {mount.type}, a network file system, mounted at {mount.place}: checkpoints are written at "
        "the network's speed, a server that stops answering stops the run, and locks can outlive the machine that "
        "held them"
    )
    fix = (
        "on a single machine, set GROWCTL_RUNS_DIR to a folder on a local disk; for several machines it must stay "
        "shared: then check disk speed and file system, above"
    )
    return Check(name, "warning", found, fix)


def home_mount(home: Path, environment: Mapping[str, str], mounts: Path = MOUNTS) -> Check:
    """Warns of caches of compiled code on a network file system, where they are unless their variables move them."""
    name = "home mount"
    folders = {variable: Path(environment.get(variable) or home / default) for variable, default in CACHES.items()}
    remote = {
        variable: mount
        for variable, folder in folders.items()
        if (mount := mount_of(folder, mounts)) is not None and mount.is_network
    }
    if not remote:
        return Check(name, "ok", _described(home, mount_of(home, mounts)))
    types = " and ".join(sorted({mount.type for mount in remote.values()}))
    found = (
        f"compiled code is cached on {types}, a network file system ({', '.join(map(str, map(folders.get, remote)))}): "
        "ranks that compile at the same time can wait for each other's locks for minutes, or load half-written files"
    )
    fix = " and ".join(f"export {variable}=/tmp/$USER/{Path(CACHES[variable]).name}" for variable in remote)
    return Check(name, "warning", found, f"{fix} (any local disk)")


def _described(path: Path, mount: Mount | None) -> str:
    if mount is None:
        return f"the file system of {path} is unknown"
    return f"{path} is on {mount.type}" + (", a network file system; the caches are elsewhere" * mount.is_network)
