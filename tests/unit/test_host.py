from __future__ import annotations

import os
from pathlib import Path

from longboat import host

MIB = 1 << 20


def write(root: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)


def test_without_a_cgroup_the_cores_are_those_this_process_may_run_on(tmp_path: Path) -> None:
    assert host.cores(str(tmp_path)) == host.CoreCount(len(os.sched_getaffinity(0)), None)


def test_a_quota_of_cgroup_version_2_is_found_at_the_nearest_level_that_sets_one(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/a/b\n",
            "sys/fs/cgroup/a/b/cpu.max": "max 100000\n",
            "sys/fs/cgroup/a/cpu.max": "50000 100000\n",
            "sys/fs/cgroup/a/memory.max": f"{64 * MIB}\n",
            "sys/fs/cgroup/a/b/memory.max": "max\n",
        },
    )
    assert host.cores(root).quota == 0.5
    assert host.cores(root).usable == 0.5
    assert host.memory(root).limit == 64 * MIB


def test_the_tightest_limit_counts(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/a/b\n",
            "sys/fs/cgroup/a/b/memory.max": f"{64 * MIB}\n",
            "sys/fs/cgroup/a/memory.max": f"{32 * MIB}\n",
        },
    )
    assert host.memory(root).usable == 32 * MIB


def test_a_quota_of_cgroup_version_1_is_found(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/job\n2:cpu,cpuacct:/job\n0::/\n",
            "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "150000\n",
            "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/job/memory.limit_in_bytes": f"{48 * MIB}\n",
        },
    )
    assert host.cores(root).quota == 1.5
    assert host.memory(root).limit == 48 * MIB


def test_in_a_container_whose_own_path_is_not_mounted_the_top_is_read(tmp_path: Path) -> None:
    root = write(tmp_path, {"proc/self/cgroup": "0::/kubepods/pod1\n", "sys/fs/cgroup/cpu.max": "200000 100000\n"})
    assert host.cores(root).quota == 2.0


def test_no_limit_as_either_version_writes_it_is_none(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/\n2:cpu:/\n0::/\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/unified/cpu.max": "max 100000\n",
        },
    )
    assert host.cores(root).quota is None
    assert host.memory(root).limit is None


def test_gpus_are_what_nvidia_smi_lists(tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA X1, 8192 MiB'\necho 'NVIDIA X1, 8192 MiB'\n")
    program.chmod(0o755)
    assert host.gpus(str(tmp_path)) == [host.Gpu("NVIDIA X1", "8192 MiB")] * 2


def test_an_nvidia_smi_that_fails_means_no_gpus(tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho no driver\nexit 9\n")
    program.chmod(0o755)
    assert host.gpus(str(tmp_path)) == []


def test_modules_that_are_not_installed_are_found_without_importing_any() -> None:
    assert host.lacking(("json", "google.protobufx", "nobody.has", "nobody_has")) == [
        "google.protobufx",
        "nobody.has",
        "nobody_has",
    ]
