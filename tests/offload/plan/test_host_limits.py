"""Limits of host memory, read from file systems that the tests lay out."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from tightship_offload.plan.host_limits import cores, memlock, read_host_limits

GIB = 2**30


def lay_out(root: Path, files: dict[str, object]) -> Path:
    base = {
        "proc/meminfo": "MemTotal:   67108864 kB\nMemFree: 1 kB\nMemAvailable: 33554432 kB\nHugePages_Total: 0\n",
        "proc/self/status": "Name:\tpython\nCapEff:\t00000000a80425fb\n",
    }
    for name, text in (base | files).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


def test_without_a_control_group_the_host_counts(tmp_path: Path) -> None:
    limits = read_host_limits(lay_out(tmp_path, {}))
    assert (limits.total, limits.available, limits.cgroup) == (64 * GIB, 32 * GIB, None)
    assert (limits.usable, limits.capacity) == (32 * GIB, 64 * GIB)
    assert limits.binding == "the host's available memory"


def test_the_tightest_group_above_counts(tmp_path: Path) -> None:
    root = lay_out(
        tmp_path,
        {
            "proc/self/cgroup": "0::/pod/box",
            "sys/fs/cgroup/pod/box/memory.max": "max",
            "sys/fs/cgroup/pod/memory.max": 16 * GIB,
            "sys/fs/cgroup/pod/memory.current": 6 * GIB,
            "sys/fs/cgroup/pod/memory.stat": f"anon 1\ninactive_file {GIB}\nactive_file 7",
            "sys/fs/cgroup/memory.max": 48 * GIB,
        },
    )
    limits = read_host_limits(root)
    assert (limits.cgroup, limits.cgroup_free, limits.usable, limits.capacity) == (
        16 * GIB,
        11 * GIB,
        11 * GIB,
        16 * GIB,
    )
    assert limits.binding == "the control group's memory limit"


def test_version_one_groups(tmp_path: Path) -> None:
    root = lay_out(
        tmp_path,
        {
            "proc/self/cgroup": "9:cpu,cpuacct:/job\n4:memory:/job",
            "sys/fs/cgroup/memory/job/memory.limit_in_bytes": 8 * GIB,
            "sys/fs/cgroup/memory/job/memory.usage_in_bytes": 9 * GIB,
            "sys/fs/cgroup/memory/memory.limit_in_bytes": 9223372036854771712,
        },
    )
    limits = read_host_limits(root)
    assert (limits.cgroup, limits.cgroup_free, limits.usable) == (8 * GIB, 0, 0)


@pytest.mark.parametrize("path", ["/../../outside", "", "/" + "x" * 300])
def test_a_group_that_cannot_be_seen_leaves_its_root(tmp_path: Path, path: str) -> None:
    root = lay_out(tmp_path, {"proc/self/cgroup": f"0::{path}", "sys/fs/cgroup/memory.max": 4 * GIB})
    assert read_host_limits(root).cgroup == 4 * GIB


def test_what_is_no_number_limits_nothing(tmp_path: Path) -> None:
    files = {"proc/meminfo": "MemTotal: many kB\n\x00", "proc/self/cgroup": "0::/", "sys/fs/cgroup/memory.max": "-1"}
    limits = read_host_limits(lay_out(tmp_path, files))
    assert (limits.usable, limits.capacity) == (None, None)


def test_memlock_does_not_bind_who_may_lock_without_limit(tmp_path: Path) -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    free = lay_out(tmp_path / "free", {"proc/self/status": "CapEff:\t000001ffffffffff"})
    bound = lay_out(tmp_path / "bound", {"proc/self/status": "CapEff:\t0000000000000000"})
    assert memlock(free) is None
    assert memlock(bound) == (None if soft == resource.RLIM_INFINITY else soft)


def test_of_this_machine() -> None:
    limits = read_host_limits()
    assert limits.usable is not None and limits.capacity is not None
    assert 0 < limits.usable <= limits.capacity
    assert cores() >= 1
