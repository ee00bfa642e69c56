"""`growctl doctor` warns of network file systems and of clocks that jump, with invented mounts and readings."""

from pathlib import Path

import pytest

from growctl.doctor.clock import Reading, file_lag, is_synchronised, judged, read_clocks
from growctl.doctor.mounts import CACHES, MOUNTS, Mount, home_mount, mount_of, runs_mount

HOME = Path("/home/ada")


def mounts_file(folder: Path, *lines: str) -> Path:
    path = folder / "mounts"
    path.write_text("".join(f"{line} rw,relatime 0 0\n" for line in ("/dev/sda1 / ext4", *lines)))
    return path


def test_the_innermost_mount_holds_a_path_and_the_last_one_at_a_place_counts(tmp_path: Path) -> None:
    mounts = mounts_file(
        tmp_path,
        "server:/home /home nfs4",
        "/dev/sdb1 /home/ada/local xfs",
        r"//server/shared\040files /mnt/shared\040files cifs",
        "overlay /srv overlay",
        "server:/srv /srv lustre",
    )
    assert mount_of(Path("/home/ada/runs"), mounts) == Mount("nfs4", Path("/home"))
    assert mount_of(Path("/home/ada/local/runs"), mounts) == Mount("xfs", Path("/home/ada/local"))
    assert mount_of(Path("/mnt/shared files/runs"), mounts) == Mount("cifs", Path("/mnt/shared files"))
    assert mount_of(Path("/srv/runs"), mounts) == Mount("lustre", Path("/srv"))
    assert mount_of(Path("/homely"), mounts) == Mount("ext4", Path("/"))


def test_a_link_is_followed_to_the_file_system_of_its_target(tmp_path: Path) -> None:
    (tmp_path / "runs").symlink_to(tmp_path / "remote/runs")
    mounts = mounts_file(tmp_path, f"server:/x {tmp_path}/remote beegfs")
    assert mount_of(tmp_path / "runs", mounts) == Mount("beegfs", tmp_path / "remote")


def test_this_machines_own_mounts_can_be_read() -> None:
    assert mount_of(Path("/proc/self"), MOUNTS) == Mount("proc", Path("/proc"))


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "lustre", "gpfs", "beegfs", "fuse.sshfs", "ceph"])
def test_runs_on_a_network_file_system_are_a_warning_with_a_fix(tmp_path: Path, kind: str) -> None:
    check = runs_mount(HOME / "runs", mounts_file(tmp_path, f"server:/home /home {kind}"))
    assert check.state == "warning"
    assert f"/home/ada/runs is on {kind}, a network file system, mounted at /home" in check.found
    assert "GROWCTL_RUNS_DIR" in (check.fix or "")


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "overlay", "tmpfs", "zfs", "fuseblk", "fuse.mergerfs"])
def test_runs_on_a_local_file_system_are_fine(tmp_path: Path, kind: str) -> None:
    mounts = mounts_file(tmp_path, f"/dev/sdb /home {kind}")
    assert runs_mount(HOME / "runs", mounts).state == home_mount(HOME, {}, mounts).state == "ok"


def test_caches_in_a_home_on_the_network_are_a_warning_that_names_their_variables(tmp_path: Path) -> None:
    mounts = mounts_file(tmp_path, "server:/home /home nfs4")
    check = home_mount(HOME, {}, mounts)
    assert check.state == "warning"
    assert "cached on nfs4, a network file system (/home/ada/.triton/cache, /home/ada/.cache/torch_ext" in check.found
    assert "export TRITON_CACHE_DIR=/tmp/$USER/cache and export TORCH_EXTENSIONS_DIR=" in (check.fix or "")


def test_caches_that_variables_move_to_a_local_disk_are_fine(tmp_path: Path) -> None:
    mounts = mounts_file(tmp_path, "server:/home /home nfs4")
    moved = dict.fromkeys(CACHES, "/tmp/cache")
    check = home_mount(HOME, moved, mounts)
    assert (check.state, check.found) == ("ok", "/home/ada is on nfs4, a network file system; the caches are elsewhere")
    one = home_mount(HOME, moved | {"TRITON_CACHE_DIR": ""}, mounts)
    assert one.state == "warning"
    assert "TORCH_EXTENSIONS_DIR" not in (one.fix or "")


def test_a_mounts_file_that_names_no_root_leaves_the_file_system_unknown(tmp_path: Path) -> None:
    (tmp_path / "mounts").write_text("garbage\n\n")
    assert runs_mount(HOME, tmp_path / "mounts").state == "ok"


STARTED = Reading(monotonic=100.0, wall=5000.0)


@pytest.mark.parametrize(("wall", "words"), [(5100.0, "forward by 90.0 s within 10 s"), (5009.0, "back by 1.0 s")])
def test_a_clock_that_jumps_is_a_warning(wall: float, words: str) -> None:
    check = judged(STARTED, Reading(110.0, wall), 0.0, True)
    assert check.state == "warning"
    assert words in check.found
    assert "chrony" in (check.fix or "")


def test_a_clock_that_is_slewed_slowly_is_fine() -> None:
    assert judged(STARTED, Reading(110.0, 5010.1), 0.0, True).found == "synchronised, no jump within 10 s"
    assert judged(STARTED, Reading(110.0, 5010.0), None, None).found == "no jump within 10 s"


@pytest.mark.parametrize(("lag", "words"), [(7.0, "7.0 s ahead"), (-3700.0, "3700.0 s behind")])
def test_a_file_server_with_another_time_is_a_warning(lag: float, words: str) -> None:
    check = judged(STARTED, Reading(110.0, 5010.0), lag, True)
    assert check.state == "warning"
    assert words in check.found


def test_a_clock_without_synchronisation_is_a_warning() -> None:
    check = judged(STARTED, Reading(110.0, 5010.0), 0.0, False)
    assert (check.state, check.fix) == ("warning", "timedatectl set-ntp true, or start chronyd")


def test_this_machines_clocks_can_be_read(tmp_path: Path) -> None:
    lag = file_lag(tmp_path)
    assert lag is not None
    assert abs(lag) < 60
    assert file_lag(tmp_path / "none") is None
    assert is_synchronised() in (True, False, None)
    assert read_clocks().wall > 1.7e9
