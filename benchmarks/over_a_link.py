"""Two workers on two hosts with a link of 100 Mbit/s and 20 ms each way: bytes and time of an update, and a cut link.

`python -m benchmarks.over_a_link` as root, which exits with 1 if a figure is not within 20 % of the model of
update_model.py, if a link that is cut for 10 s is neither survived nor named, or if one that is cut for ever is not
named on both sides within 30 s. It exits with 77 where it may not make hosts. The first worker, the scheduler and the
server are on one host. Rank 0's time alone with the same net is the measured compute of the model.
"""

import json
import os
from pathlib import Path
import subprocess
import sys
import tempfile
import time
from typing import Any, Dict, List

from benchmarks.harness import ROOT
from benchmarks.two_hosts import A, TwoHosts, link_bytes
from benchmarks.update_model import Link, ps_lite
from benchmarks.update_model import link_bytes as model_bytes

LINK = Link(1e8, 0.02)
# Widths of dense layers, the inputs first; 1, 4 and 25 MB of float32. The many are 71 layers, and 1 MB.
NETS: Dict[str, List[int]] = {
    "1 MB": [784, 256, 190, 10],
    "1 MB, many": [60] * 71 + [10],
    "4 MB": [784, 512, 640, 320, 110, 10],
    "25 MB": [784, 2048, 2000, 270, 10],
}
UPDATES = {"1 MB": 20, "1 MB, many": 20, "4 MB": 10, "25 MB": 4}
WITHIN, WARM_UP = 0.2, 3


def work(net: str, updates: int, file: str) -> None:
    """Be a worker: write bytes and seconds of an update; alone, if there are no others."""
    import mxkit.distributed
    from mxkit.training.accumulator import Accumulator
    import mxnet as mx
    from mxnet import autograd, gluon

    several = mxkit.distributed.initialize()
    mx.random.seed(0)
    widths = NETS[net]
    block = gluon.nn.HybridSequential()
    for one, following in zip(widths, widths[1:]):
        block.add(gluon.nn.Dense(following, activation="relu", in_units=one))
    block.initialize(mx.init.Xavier())
    block.hybridize(static_alloc=True, static_shape=True)
    mxkit.distributed.broadcast_parameters(block)
    parameters = list(block.collect_params().values())
    trainer = gluon.Trainer(parameters, "sgd", {"learning_rate": 1e-3}, update_on_kvstore=False)
    x, begun, before = mx.nd.random.uniform(shape=(4, widths[0])), 0.0, (0, 0)
    with Accumulator(trainer) as accumulator:
        for number in range(WARM_UP + updates):
            if number == WARM_UP:
                mx.nd.waitall()
                mxkit.distributed.barrier("the measure begins")
                begun, before = time.monotonic(), link_bytes() if several else before
                Path(file).touch()
            with autograd.record():
                losses = (block(x) ** 2).sum(axis=1)
            accumulator.backward(losses)
            accumulator.step()
        mx.nd.waitall()
    seconds = time.monotonic() - begun
    mxkit.distributed.barrier("the measure ends")
    traffic = sum(link_bytes()) - sum(before) if several else 0
    sizes = [4 * parameter.data().size for parameter in parameters]
    total = sum(float(parameter.data().sum().asscalar()) for parameter in parameters)
    answer = {"seconds": seconds / updates, "bytes": traffic / updates, "sizes": sizes, "sum": total}
    Path(file).write_text(json.dumps(answer))


def start(hosts: TwoHosts, net: str, updates: int, folder: Path) -> List["subprocess.Popen[Any]"]:
    own = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "MXKIT_SIZE": "2", "MXKIT_ADDRESS": f"{A}:29400"}
    started = []
    for rank in (0, 1):
        command = [sys.executable, "-m", "benchmarks.over_a_link", net, str(updates), str(folder / str(rank))]
        with (folder / f"{rank}.log").open("w") as log:
            variables = {**own, "MXKIT_RANK": str(rank)}
            started.append(hosts.start(rank, command, variables, cwd=str(ROOT), stdout=log, stderr=log))
    return started


def alone(net: str, updates: int, folder: Path) -> Any:
    """What a process alone measures."""
    command = [sys.executable, "-m", "benchmarks.over_a_link", net, str(updates), str(folder / "alone")]
    subprocess.run(command, cwd=str(ROOT), env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True)
    return json.loads((folder / "alone").read_text())


def measure(net: str) -> bool:
    """Print a line; whether the figures are within the bar."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with TwoHosts(*LINK) as hosts:
            for process in start(hosts, net, UPDATES[net], folder):
                process.wait(180)
            workers = [json.loads((folder / str(rank)).read_text()) for rank in (0, 1)]
        compute = alone(net, UPDATES[net], folder)["seconds"]
    size = sum(workers[0]["sizes"])
    seconds = compute + ps_lite(size, 2, LINK, min(2**20, max(workers[0]["sizes"])))
    ratios = [workers[1]["bytes"] / model_bytes(size, 2), workers[1]["seconds"] / seconds]
    print(
        f"{net}: {workers[1]['bytes'] / 1e6:.3f} MB an update on the link, {ratios[0]:.3f} of the model; "
        f"{1e3 * workers[1]['seconds']:.0f} ms an update, {ratios[1]:.3f} of the model's {1e3 * seconds:.0f} ms "
        f"({1e3 * compute:.0f} ms of them computing)",
        flush=True,
    )
    return workers[0]["sum"] == workers[1]["sum"] and all(abs(ratio - 1) <= WITHIN for ratio in ratios)


def cut(seconds: float) -> bool:
    """Cut the link in the middle; whether the job survives or all workers name it within 30 s."""
    with tempfile.TemporaryDirectory() as name, TwoHosts(*LINK) as hosts:
        folder = Path(name)
        workers = start(hosts, "1 MB", 60, folder)
        while not all((folder / str(rank)).exists() for rank in (0, 1)):
            time.sleep(0.1)
        time.sleep(1)
        begun = time.monotonic()
        hosts.cut(True)
        while time.monotonic() < begun + seconds and any(one.poll() is None for one in workers):
            time.sleep(0.1)
        took = time.monotonic() - begun
        hosts.cut(False)
        codes = [one.wait(120) for one in workers]
        logs = [(folder / f"{rank}.log").read_text() for rank in (0, 1)]
    survived = not any(codes)
    named = all(code and ("sent nothing" in log or "is lost" in log) for code, log in zip(codes, logs))
    lines = [next((line for line in log.splitlines() if "heard" in line or "lost" in line), "-") for log in logs]
    print(
        f"a link cut for {seconds:g} s: {'survived' if survived else f'ended after {took:.0f} s'}", *lines, sep="\n  "
    )
    return (survived or named) if seconds < 30 else (named and took < 30)


def main() -> None:
    if os.geteuid() or not Path("/dev/net/tun").exists():
        print("not tried: hosts of its own need root and /dev/net/tun")
        sys.exit(77)
    try:
        TwoHosts(*LINK).close()
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"not tried: this process may not make hosts: {error}")
        sys.exit(77)
    good = [measure(net) for net in NETS]
    good += [cut(10), cut(60)]
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    if sys.argv[1:]:
        work(sys.argv[1], int(sys.argv[2]), sys.argv[3])
    else:
        main()
