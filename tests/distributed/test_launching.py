"""`mxkit launch` with programs that need no MXNet: output, exit codes, signals, other hosts."""

import os
from pathlib import Path
import re
import signal
import stat
import subprocess
import sys
import time

from jobs import Job
from mxkit.distributed.schedulers import hosts_of
from mxkit.errors import DistributedError
import pytest
from sharing import command

# Ends at once when a signal comes, says which, and has a child that would outlive it.
WAITS = """
import os, signal, subprocess, sys, time
def heard(number, frame):
    print(f"heard {number}", flush=True)
    raise SystemExit(5)
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, heard)
subprocess.Popen(["sleep", "1000"], start_new_session=True)
print(f"ready {os.environ['MXKIT_RANK']}", flush=True)
time.sleep(1000)
"""


LAUNCH = [sys.executable, "-m", "mxkit", "launch"]


def launch(*command, n=2, options=(), text=True, **variables):
    """Run a command to its end; its exit status and output."""
    return subprocess.run(
        [*LAUNCH, *(["-n", str(n)] if n else []), *options, "--", *map(str, command)],
        env={**os.environ, **variables},
        capture_output=True,
        text=text,
        stdin=subprocess.DEVNULL,
        timeout=120,
    )


@pytest.mark.long
def test_workers_that_join_nobody():
    done = launch("sh", "-c", "echo $OMP_NUM_THREADS $MXKIT_RESTARTS", OMP_NUM_THREADS="7")
    assert (done.returncode, sorted(done.stdout.splitlines())) == (0, ["7 0", "[1] 7 0"])
    assert done.stderr.count("\n") == 1
    assert "each has worked alone, unless it used a kvstore of MXNet. A script joins by mxkit.dist" in done.stderr
    alone = launch("sh", "-c", "echo $MXKIT_SIZE $OMP_NUM_THREADS; exit 7", n=1, OMP_NUM_THREADS="")
    assert (alone.returncode, alone.stdout) == (7, "1\n")


def test_commands_that_cannot_be_started(tmp_path):
    code, _, err = command("launch", "--", "true")
    assert (code, "pass -n WORKERS, --hosts FILE, or both" in " ".join(err.split())) == (2, True)
    (tmp_path / "text").write_text("no program")
    (tmp_path / "text").chmod(0o755)
    for name, words in {"no-such-command": "No such file", tmp_path / "text": "Exec format error"}.items():
        done = launch(name, n=1, options=["--restarts", "3"])
        assert (done.returncode, "restart" in done.stderr) == (127, False)
        assert re.search(f"cannot start '{name}' .*{words}", done.stderr)


@pytest.mark.long
def test_restarts():
    script = 'echo "attempt $MXKIT_RESTARTS"; test $MXKIT_RANK = 0 || exec sleep 0.1; test $MXKIT_RESTARTS = 1'
    done = launch("sh", "-c", script, n=2, options=["--restarts", "2"])
    assert done.returncode == 0
    assert [line for line in done.stdout.splitlines() if line[0] == "a"] == ["attempt 0", "attempt 1"]
    assert "mxkit launch: worker 0 failed with exit status 1" in done.stderr
    assert "mxkit launch: restart 1 of 2" in done.stderr


def waiting(tmp_path, **options):
    job = Job([sys.executable, "-c", WAITS], output=tmp_path / "output", **options)
    job.wait("ready 0")
    job.wait("[1] ready 1")
    return job


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_reach_the_workers(tmp_path, number):
    job = waiting(tmp_path, options=["--restarts", "1"])
    os.kill(job.process.pid, number)
    assert job.ended() == 128 + number
    if number != signal.SIGHUP:
        assert f"heard {int(number)}" in job.text().splitlines()
        assert f"[1] heard {int(number)}" in job.text().splitlines()
    assert "restart" not in job.text()


@pytest.mark.long
@pytest.mark.parametrize("name", ["the launcher", "a keeper", "worker 1"])
def test_no_process_is_left(tmp_path, name):
    job = waiting(tmp_path)
    victim = job.find(name)
    before = list(job.processes())
    os.kill(victim, signal.SIGKILL)
    if name == "the launcher":
        job.process.wait()
        assert job.gone(before, 30) is not None
        assert f"mxkit launch (process {victim}) is lost" in job.text()
    assert job.ended() == (-9 if name == "the launcher" else 137)


@pytest.mark.long
def test_ctrl_c_on_a_terminal(tmp_path):
    """Worker 0 keeps the terminal; Ctrl-C reaches each process once."""
    script = tmp_path / "waits.py"
    terminals = 'print(f"{sys.stdin.isatty()} {sys.stdout.isatty()}")\n'
    script.write_text(WAITS.replace('print(f"ready', terminals + 'print(f"ready'))
    main, other = os.openpty()
    job = subprocess.Popen(
        ["setsid", "--ctty", "--wait", *LAUNCH, "-n", "2", "--", sys.executable, script],
        stdin=other,
        stdout=other,
        stderr=other,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    os.close(other)
    os.set_blocking(main, False)
    text, until = "", time.monotonic() + 60
    while time.monotonic() < until:
        try:
            text += os.read(main, 2**16).decode()
        except BlockingIOError:
            time.sleep(0.02)
        except OSError:  # its last process has ended
            break
        if "ready 0" in text and "ready 1" in text and "heard" not in text:
            os.write(main, b"\x03")
            time.sleep(0.3)
    os.close(main)
    assert job.wait(60) == 130, text
    assert text.count("heard 2") == 2
    assert "True True" in text
    assert "False False" in text


# other hosts, by a program named ssh that runs the command here: no server of ssh is installed where the tests run

SSH = """#!/bin/sh
echo "$@" >> {log}
case "$*" in *unreachable*) echo "ssh: connect to host unreachable port 22: No route to host" >&2; exit 255;; esac
for last; do :; done
cd / && exec env -i HOME=/ FROM_SSH=1 sh -c "$last"
"""


@pytest.fixture
def ssh(tmp_path, monkeypatch):
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(SSH.format(log=tmp_path / "calls"))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    return tmp_path / "calls"


def test_output_and_exit_codes_of_workers_here_and_on_other_hosts(ssh, tmp_path):
    script = r"""
echo "$MXKIT_RANK of $MXKIT_SIZE, threads $OMP_NUM_THREADS, ssh $FROM_SSH, $MXKIT_ADDRESS $PWD"
echo "err $MXKIT_RANK" >&2
printf '10%%\r50%%\r100%%\r\nwithout an end'
test ${#MXKIT_SECRET} = 32 && exit $((MXKIT_RANK % 2 * 3))
"""
    (tmp_path / "hosts").write_text("localhost\n\nother1 2 # with two cards\n")
    options = ["--hosts", str(tmp_path / "hosts"), "--address", "127.0.0.1"]
    done = launch("sh", "-c", script, n=None, options=options, text=False, OMP_NUM_THREADS="")
    assert done.returncode == 3, done.stderr
    address = re.search(r"127.0.0.1:\d+", done.stdout.decode())[0]
    place, text = f"{address} {Path.cwd()}\n".encode(), done.stdout
    threads = max(1, len(os.sched_getaffinity(0)) // 2)
    for rank in (1, 2):
        first = b"[%d] %d of 3, threads %d, ssh 1, " % (rank, rank, threads) + place
        for line in (first, b"[%d] 100%%\n" % rank, b"[%d] without an end\n" % rank):
            assert text.count(line) == 1
            text = text.replace(line, b"")  # between those of worker 0, wherever they came
    assert text == b"0 of 3, threads , ssh , " + place + b"10%\r50%\r100%\r\nwithout an end"
    lines = done.stderr.decode().splitlines()
    assert {"err 0", "[1] err 1", "[2] err 2"} < set(lines)
    assert "mxkit launch: worker 1 on other1 failed with exit status 3; all others are ended" in lines
    calls = ssh.read_text().splitlines()
    assert len(calls) == 2
    assert all(" other1 exec " in call and "SECRET" not in call for call in calls)


@pytest.mark.long
def test_a_host_that_is_not_reached(ssh, tmp_path):
    (tmp_path / "hosts").write_text("localhost\nunreachable\n")
    done = launch("sleep", "0.1", n=2, options=["--hosts", str(tmp_path / "hosts"), "--address", "127.0.0.1"])
    assert done.returncode == 255
    assert "[1] ssh: connect to host unreachable port 22: No route to host" in done.stderr
    assert "mxkit launch: worker 1 on unreachable failed with exit status 255" in done.stderr


@pytest.mark.long
def test_processes_on_other_hosts_end_with_the_launcher(ssh, tmp_path):
    (tmp_path / "hosts").write_text("localhost\nother\n")
    # its own variables do not pass ssh; those that begin with MXKIT_ do
    job = waiting(tmp_path, options=["--hosts", str(tmp_path / "hosts"), "--address", "127.0.0.1"])
    assert list(job.processes().values()).count("a child") == 2
    os.kill(job.process.pid, signal.SIGKILL)
    job.process.wait()
    assert job.gone(list(job.processes()), 30) is not None
    assert "heard 15" in job.text()
    job.end()


def test_files_of_hosts(tmp_path):
    file = tmp_path / "hosts"
    file.write_text("a 2\nme@b\n")
    assert hosts_of(file, None) == ["a", "a", "me@b"]
    assert hosts_of(file, 2) == ["a", "a"]
    with pytest.raises(DistributedError, match=r"hosts has 3 slots for 4 workers: add hosts, or slots"):
        hosts_of(file, 4)
    for line in ("a b", "a 2 3", "-oProxyCommand=x"):
        file.write_text(f"a\n{line}\n")
        with pytest.raises(DistributedError, match=r"hosts, line 2: expected HOST \[SLOTS\], like node1 2; received '"):
            hosts_of(file, None)
