"""Real jobs of MXNet: what workers call, and what happens when a process is killed, stops or fails."""

import os
from pathlib import Path
import random
import re
import signal
import socket
import subprocess
import sys
import time

from jobs import CAUSES, HERE, Job, assert_same, start
import pytest

pytestmark = pytest.mark.long

PAUSE = 0.05


@pytest.fixture
def calls(tmp_path):
    """A job whose workers wait for the file `go`."""
    job = Job([sys.executable, HERE / "calls.py", tmp_path], output=tmp_path / "output")
    job.until(lambda: (tmp_path / "0").exists() and (tmp_path / "1").exists(), "files of the workers")
    yield job
    job.end()


def listeners(processes):
    """Addresses where processes listen over TCP, in Linux's hexadecimal form."""
    files = (file for process in processes for file in Path(f"/proc/{process}/fd").iterdir())
    inodes = {os.readlink(str(file)) for file in files}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in inodes:
                found.add(words[1].split(":")[0])
    return found


def test_what_workers_call(calls, tmp_path):
    # 127.0.0.1: the coordinator, MXNet's scheduler, server, workers
    assert listeners(calls.processes()) == {"0100007F"}
    (tmp_path / "go").touch()
    assert calls.ended() == 3, calls.text()
    lines = calls.text().splitlines()
    for line in ("worker 0 is well", "[1] worker 1 is well", "printed by C, unflushed", "[1] printed by C, unflushed"):
        assert line in lines, calls.text()
    assert "mxkit: a command 0 for the server was refused" in lines
    assert "mxkit launch: worker 0 failed with exit status 3; all others are ended" in lines


@pytest.mark.parametrize("name", ["server 0", "the scheduler"])
def test_a_process_beside_the_workers_is_killed(calls, tmp_path, name):
    victim = calls.find(name)
    os.kill(victim, signal.SIGKILL)
    (tmp_path / "go").touch()
    assert calls.ended(30) == 137
    assert re.search(CAUSES[name].format(victim), calls.text())
    assert f"mxkit launch: {name} was ended by SIGKILL; all others are ended" in calls.text()
    assert "DistributedError: worker 1 on" in calls.text()
    assert "is well" not in calls.text()


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """The folder of a job that nobody disturbed, and its seconds."""
    folder, begun = tmp_path_factory.mktemp("jobs") / "sound", time.monotonic()
    job = start(folder, PAUSE, folder.with_suffix(".txt"))
    assert job.ended() == 0, job.text()
    return folder, time.monotonic() - begun


def killed(name, after, folder, sound):
    """Kill a process after some seconds; whether the training had not ended before."""
    job = start(folder, PAUSE, folder.with_suffix(".txt"))
    try:
        time.sleep(after)
        try:
            victim = job.find(name)
        except LookupError:
            assert job.ended() == 0, job.text()
            return False
        there = job.processes()
        os.kill(victim, signal.SIGKILL)  # one that has ended since is there until the launcher has seen it
        late = any(folder.glob("worker-*"))
        if name == "the launcher":
            job.process.wait()
        assert job.gone(there.keys() - {job.process.pid}, 30) is not None, job.text()
        if late:
            return False
        assert "worker 0" not in there.values() or re.search(CAUSES[name].format(victim), job.text()), job.text()
        if name == "the launcher":
            job = start(folder, PAUSE, folder.with_suffix(".txt"))
        assert job.ended() == 0, job.text()
        assert_same(folder, sound)
        return True
    finally:
        job.end()


@pytest.mark.parametrize("name", CAUSES)
def test_a_kill_at_a_random_instant_is_named_and_the_job_that_starts_again_has_the_same_bits(sound, tmp_path, name):
    random_, (folder, seconds) = random.Random(name), sound
    # a machine is not equally fast all the time: the training may have ended before
    assert any(killed(name, random_.uniform(0, 0.9 * seconds), tmp_path / str(i), folder) for i in range(5))


def test_a_killed_worker_and_the_same_bits(sound, tmp_path):
    job = start(tmp_path / "run", PAUSE, tmp_path / "output")
    job.wait_for_checkpoint(tmp_path / "run")
    there = job.processes()
    assert list(there.values()).count("a child") >= 4  # of the DataLoaders
    os.kill(job.find("worker 1"), signal.SIGKILL)
    assert job.gone([number for number in there if number != job.process.pid], 30) is not None
    assert job.ended() == 0, job.text()
    assert "mxkit launch: worker 1 was ended by SIGKILL" in job.text()
    assert "worker 0 ended after 1 restarts" in job.text()
    assert_same(tmp_path / "run", sound[0])


def test_stopped_for_a_while_then_terminated(sound, tmp_path):
    """A worker that stands still for 5 s is waited for; SIGTERM lets all write a checkpoint."""
    job = start(tmp_path / "run", PAUSE, tmp_path / "output")
    job.wait_for_checkpoint(tmp_path / "run")
    stopped = job.find("worker 1")
    os.kill(stopped, signal.SIGSTOP)
    time.sleep(5)
    os.kill(stopped, signal.SIGCONT)
    os.kill(job.process.pid, signal.SIGTERM)
    assert job.ended() == 143, job.text()
    assert "mxkit: stopping at the next checkpoint" in job.text()
    assert not (tmp_path / "run" / "worker-0").exists()
    job = start(tmp_path / "run", 0, tmp_path / "output")
    assert job.ended() == 0, job.text()
    assert_same(tmp_path / "run", sound[0])


# without the launcher: worker 0 starts the servers

ALONE = """
import os, sys, time
from mxkit import distributed
distributed.initialize()
distributed.barrier()
print("met", flush=True)
if distributed.rank() == 0:
    time.sleep({pause})
    sys.exit(4)
time.sleep(1.5)
import mxnet as mx
print(mx.nd.ones(2).asnumpy().sum(), flush=True)
{last}
sys.exit(5)
"""


def workers(last="", pause=0.0, **variables):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {**os.environ, "OMP_NUM_THREADS": "1", "MXKIT_SIZE": "2", "MXKIT_ADDRESS": f"127.0.0.1:{port}"}
    shared.update(variables)
    return [
        subprocess.Popen(
            [sys.executable, "-c", ALONE.format(last=last, pause=pause)],
            env={**shared, "MXKIT_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]


def children(process):
    return Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()


def test_worker_0_waits_at_its_end_for_those_that_it_serves():
    first, second = workers()
    assert second.communicate(timeout=90) == ("met\n2.0\n", "")
    assert first.communicate(timeout=90) == ("met\n", "")
    assert (first.returncode, second.returncode) == (4, 5)


def test_who_has_ended_is_named_to_who_waits():
    first, second = workers('distributed.barrier("late")')
    text = second.communicate(timeout=90)[1]
    assert re.search(r"worker 0 on \S+ \(process \d+\) has ended, and worker 1 waits for it at barrier 'late'", text)
    first.communicate(timeout=90)
    assert (first.returncode, second.returncode) == (4, 1)


def test_worker_0_is_killed_with_the_servers_beside_it():
    first, second = workers("time.sleep(60)", pause=60)
    assert first.stdout.readline() == second.stdout.readline() == "met\n"
    beside = children(first)
    assert len(beside) == 2
    first.kill()
    text = second.communicate(timeout=60)[1]
    assert second.returncode == 75
    assert re.search(rf"worker 0 on \S+ \(process {first.pid}\) is lost: its connection is closed", text)
    first.communicate(timeout=60)  # until the servers, which hold its pipes, have ended
    assert not any(Path(f"/proc/{number}").exists() for number in beside)


def test_each_worker_has_a_server_that_is_missed_by_all():
    first, second = workers("time.sleep(60)", pause=60, MXKIT_SERVERS="each")
    assert first.stdout.readline() == second.stdout.readline() == "met\n"
    beside = [children(one) for one in (first, second)]
    words = [[Path(f"/proc/{number}/cmdline").read_text().split("\0")[3:5] for number in one] for one in beside]
    assert [[one[0] for one in own] for own in words] == [["scheduler", "server"], ["server"]]
    assert (words[0][1][1], words[1][0][1]) == ("0", "1")
    os.kill(int(beside[1][0]), signal.SIGKILL)
    for process in (first, second):
        text = process.communicate(timeout=60)[1]  # until the processes beside it, which hold its pipes, have ended
        assert process.returncode == 75
        assert re.search(rf"server 1 on \S+ \(process {beside[1][0]}\) is lost", text)
