"""The available memory, from what Linux says of a machine and of the groups that a container or a job is in."""

from pathlib import Path

import pytest

from growctl.runs.memory import available_memory

GB = 10**9
LIMITED = {"memory.max": 4 * GB, "memory.current": 3 * GB, "memory.stat": f"anon {2 * GB}\ninactive_file {GB}\n"}
OLD_LIMITED = {
    "memory.limit_in_bytes": 4 * GB,
    "memory.usage_in_bytes": 3 * GB,
    "memory.stat": f"inactive_file 7\ntotal_inactive_file {GB // 2}\n",
}


@pytest.mark.parametrize(
    ("group", "folder", "files", "available"),
    [
        ("0::/\n", "", {}, 8 * GB),
        ("0::/jobs/7\n", "jobs/7", LIMITED, 2 * GB),
        ("0::/jobs/7\n", "jobs", LIMITED, 2 * GB),
        ("0::/not/seen/inside\n", "", LIMITED, 2 * GB),
        ("0::/\n", "", LIMITED | {"memory.max": "max"}, 8 * GB),
        ("4:memory:/job\n1:cpu:/\n0::/\n", "memory/job", OLD_LIMITED, 1.5 * GB),
        ("4:memory:/job\n", "memory", OLD_LIMITED | {"memory.limit_in_bytes": 2**63 - 4096}, 8 * GB),
    ],
)
def test_the_tightest_limit_on_the_process_counts_and_caches_do_not(
    tmp_path: Path, group: str, folder: str, files: dict[str, object], available: float
) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(group)
    (tmp_path / "proc/meminfo").write_text(f"MemTotal: 16000000 kB\nMemAvailable:    {8 * GB // 1024} kB\n")
    place = tmp_path / "sys/fs/cgroup" / folder
    place.mkdir(parents=True)
    for name, content in files.items():
        (place / name).write_text(f"{content}\n")
    assert available_memory(tmp_path) == available


def test_memory_that_linux_does_not_tell_is_unknown(tmp_path: Path) -> None:
    assert available_memory(tmp_path) is None
