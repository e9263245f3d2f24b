"""Processors, memory and shared memory as control groups leave them, read from given folders."""

import os

from mxkit.runtime.doctor.hardware import memory_line, shared_memory_line, thread_line
from mxkit.runtime.machine import (
    Memory,
    Processors,
    count_cores,
    cpu_quota,
    processor_model,
    read_memory,
    read_processors,
)
import pytest

GIB = 2**30


@pytest.fixture
def root(tmp_path):
    def write(path, text):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return tmp_path

    write("proc/meminfo", "MemTotal: 16777216 kB\nMemFree: 1048576 kB\nMemAvailable: 8388608 kB\n")
    return write


def test_here():
    found = read_processors()
    assert 1 <= found.cores <= found.usable == len(os.sched_getaffinity(0)) <= os.cpu_count()
    assert 1 <= found.threads <= found.cores
    memory = read_memory()
    assert 0 < memory.available <= memory.total
    assert memory.total <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_two_threads_of_a_core_count_once(root):
    for number, siblings in enumerate(["0,2", "1,3", "0,2", "1,3"]):
        tmp = root(f"sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list", f"{siblings}\n")
    assert count_cores({0, 1, 2, 3}, tmp) == 2
    assert count_cores({0, 2}, tmp) == 1
    assert count_cores({7, 8}, tmp) == 2, "where the system does not tell, each is a core"


def test_quota_of_version_2(root):
    root("proc/self/cgroup", "0::/user/job\n")
    tmp = root("sys/fs/cgroup/user/job/cpu.max", "max 100000\n")
    assert cpu_quota(tmp) is None
    root("sys/fs/cgroup/user/cpu.max", "250000 100000\n")
    assert cpu_quota(tmp) == 2.5, "the group around it"
    root("sys/fs/cgroup/user/job/cpu.max", "150000 100000\n")
    assert cpu_quota(tmp) == 1.5


def test_quota_of_version_1(root):
    root("proc/self/cgroup", "9:name=systemd:/x\n2:cpu,cpuacct:/docker/abc\n0::/\n")
    root("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    tmp = root("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n")
    assert cpu_quota(tmp) is None
    root("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "400000\n")
    assert cpu_quota(tmp) == 4.0, "in a container the host's path is not there, and the top folder is its own"


@pytest.mark.parametrize("text", ["", "0::\n", "rubbish"])
def test_odd_control_groups(root, text):
    tmp = root("proc/self/cgroup", text)
    assert cpu_quota(tmp) is None
    assert read_memory(tmp) == Memory(16 * GIB, 8 * GIB, False)


def test_memory_of_both_versions(root):
    root("proc/self/cgroup", "0::/job\n")
    root("sys/fs/cgroup/job/memory.current", str(3 * GIB))
    root("sys/fs/cgroup/job/memory.stat", f"anon 5\ninactive_file {GIB}\n")
    tmp = root("sys/fs/cgroup/job/memory.max", "max\n")
    assert read_memory(tmp) == Memory(16 * GIB, 8 * GIB, False)
    root("sys/fs/cgroup/job/memory.max", str(4 * GIB))
    assert read_memory(tmp) == Memory(4 * GIB, 2 * GIB, True)
    root("proc/self/cgroup", "4:memory:/job\n")
    root("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "9223372036854771712\n")
    assert read_memory(tmp) == Memory(16 * GIB, 8 * GIB, False)
    root("sys/fs/cgroup/memory/job/memory.limit_in_bytes", str(4 * GIB))
    root("sys/fs/cgroup/memory/job/memory.usage_in_bytes", str(4 * GIB))
    root("sys/fs/cgroup/memory/job/memory.stat", f"inactive_file 0\ntotal_inactive_file {GIB}\n")
    assert read_memory(tmp) == Memory(4 * GIB, GIB, True)


def test_no_memory_information_is_no_error(tmp_path):
    assert read_memory(tmp_path) is None


WORKER = {"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "4"}


@pytest.mark.parametrize(
    ("processors", "variables", "value", "fix"),
    [
        (Processors(2, 2, None), {}, "MXNet takes 2: one per core; mxkit chose it, MXNet alone takes 1", ""),
        (Processors(64, 32, 4.0), {}, "MXNet takes 4: the quota is 4; mxkit chose it, MXNet alone takes 32", ""),
        (Processors(8, 4, None), {"OMP_NUM_THREADS": "8"}, "MXNet takes 8, with OMP_NUM_THREADS=8, yours", ""),
        (Processors(8, 4, None), {"OMP_NUM_THREADS": "16"}, "MXNet takes 16, ", "OMP_NUM_THREADS=4 "),
        (Processors(64, 32, 2.0), {"MXNET_OMP_MAX_THREADS": "9"}, "MXNet takes 9, with MXNET_OMP_MAX", "THREADS=2 "),
        (Processors(8, 4, None), {"OMP_NUM_THREADS": "2,1"}, "OMP_NUM_THREADS='2,1' is no number", "=4 "),
        (
            Processors(8, 8, None),
            {**WORKER, "DMLC_JOB_CLUSTER": "local"},
            "MXNet takes 2: one per core, shared by 4 workers on this host; mxkit chose it, MXNet alone takes 4",
            "",
        ),
        (Processors(8, 8, None), {"OMP_THREAD_LIMIT": "2"}, "MXNet takes 2: OMP_THREAD_LIMIT=2 may allow no more", ""),
        (Processors(8, 4, None), WORKER, "MXNet takes 4: one per core; 4 workers compute, here", "OMP_NUM_THREADS=N "),
    ],
)
def test_threads(monkeypatch, processors, variables, value, fix):
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    line = thread_line(processors, variables)
    assert line.value.startswith(value)
    assert fix in line.fix
    assert line.status == ("problem" if "no number" in value else "warning" if fix else "ok")
    assert line.data["sensible"] == processors.threads
    assert (line.data["taken"] is None) == ("no number" in value)


def test_the_processor_has_a_name(root):
    tmp = root("proc/cpuinfo", "processor : 0\nmodel name\t: Some Processor @ 2 GHz\n")
    assert processor_model(tmp) == "Some Processor @ 2 GHz"
    assert processor_model()


def test_little_memory():
    assert memory_line(Memory(16 * GIB, 8 * GIB, False)).status == "ok"
    line = memory_line(Memory(2 * GIB, GIB, True))
    assert line.status == "warning"
    assert line.value == "1.0 GiB available of 2.0 GiB that its control group allows"


def test_little_shared_memory():
    assert shared_memory_line(8 * GIB, 8 * GIB).status == "ok"
    docker = shared_memory_line(GIB // 16, GIB // 16)
    assert docker.status == "warning"
    assert docker.fix.startswith("docker run --shm-size=2g, or remove what")
