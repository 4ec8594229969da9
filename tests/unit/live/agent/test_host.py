"""The cores and the memory of a machine that jobs may use, by its control groups."""

import os

import pytest

from rota.live.agent.host import usable_memory_gb, usable_millicores

MACHINE_GB = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9


@pytest.fixture
def group(tmp_path, monkeypatch):
    """Write control groups: ``group(LINES OF /proc/self/cgroup, {FILE: TEXT})``; returns where."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 7})

    def write(lines, files):
        own = tmp_path / "own"
        own.write_text(lines)
        for name, text in files.items():
            path = tmp_path / "mount" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path / "mount", own

    return write


@pytest.mark.parametrize(
    ("lines", "files", "millicores"),
    [
        ("0::/a/b\n", {}, 4000),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "250000 100000\n"}, 2500),
        ("0::/a\n", {"a/cpu.max": "900000 100000\n"}, 4000),
        ("0::/a\n", {"a/cpu.max": "50 100000\n"}, 1),
        ("0::/elsewhere\n", {"cpu.max": "150000 100000\n"}, 1500),
        ("0::/../..\n", {"cpu.max": "150000 100000\n"}, 1500),
        ("3:cpu,cpuacct:/a\n", {"cpu,cpuacct/a/cpu.cfs_quota_us": "-1\n"}, 4000),
        (
            "4:memory:/\n1:cpu:/a\n0::/\n",
            {"cpu/a/cpu.cfs_quota_us": "75000\n", "cpu/a/cpu.cfs_period_us": "50000\n"},
            1500,
        ),
    ],
)
def test_cores_are_those_of_the_affinity_or_less_by_the_tightest_quota(
    group, lines, files, millicores
):
    assert usable_millicores(*group(lines, files)) == millicores


@pytest.mark.parametrize(
    ("lines", "files", "gb"),
    [
        ("0::/a\n", {"a/memory.max": "max\n"}, MACHINE_GB),
        ("0::/a/b\n", {"a/memory.max": "100000000\n", "a/b/memory.max": "max\n"}, 0.1),
        ("4:memory:/a\n", {"memory/a/memory.limit_in_bytes": "200000000\n"}, 0.2),
        ("4:cpu:/a\n", {"memory/a/memory.limit_in_bytes": "200000000\n"}, MACHINE_GB),
    ],
)
def test_memory_is_that_of_the_machine_or_of_the_tightest_group(group, lines, files, gb):
    assert usable_memory_gb(*group(lines, files)) == pytest.approx(gb, abs=1e-3)


def test_without_control_groups_the_affinity_counts(tmp_path):
    assert usable_millicores(tmp_path, tmp_path / "none") == 1000 * len(os.sched_getaffinity(0))
