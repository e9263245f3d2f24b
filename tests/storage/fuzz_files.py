"""Damages parameter files and reads them: `python tests/storage/fuzz_files.py --count 2000`.

`read_arrays` must refuse each file with a CheckpointError, or the file must be one that MXNet would write: the arrays,
saved again, give the same bytes (except devices: arrays are read to the CPU). `read_numpy`, the reader without MXNet,
must refuse the same files and read the same numbers. Exit code 1 if a file crashed, hung, cost more than 4 times its
size and 32 MB, or was read otherwise.
"""

import argparse
from collections import Counter
import json
import os
from pathlib import Path
import random
import resource
import signal
import struct
import subprocess
import sys
import tempfile

import mxkit
from mxkit.errors import CheckpointError
from mxkit.storage.parameter_file import read_arrays
from mxkit.storage.params_format import V3, Walk, read_numpy
import mxnet as mx
import numpy as np

SECONDS = 5
BFLOAT16 = np.dtype([("bfloat16", np.uint16)])
WORDS = [0, 1, 2, 3, 6, 7, 12, 13, 16, 31, 32, 33, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63, -1]
WORDS += [0x112, 0xF993FAC8, 0xF993FAC9, 0xF993FACA]
FAILURES = ("crashed", "hung", "grew", "other error", "read what MXNet does not write", "without MXNet: ")
# Refused by the reader without MXNet alone
BEYOND_NUMPY = "is sparse: read it with MXNet"


def sources(folder):
    """Write one real file of each kind."""
    mxkit.seed_all(0)
    net = mxkit.models.mlp(3, hidden=(16, 16))
    mxkit.initialize(net)
    net.hybridize()
    net(mx.nd.ones((1, 5)))
    net.save_parameters(str(folder / "mlp"))
    net.export(str(folder / "exported"))
    big = mxkit.models.mlp(10, hidden=(500,))
    mxkit.initialize(big)
    big(mx.nd.ones((1, 784)))
    big.save_parameters(str(folder / "big"))
    dtypes = ["float32", "float64", "float16", "uint8", "int32", "int8", "int64", "bool", BFLOAT16]
    mx.nd.save(str(folder / "dtypes"), {str(dtype): mx.nd.ones((2, 3)).astype(dtype) for dtype in dtypes})
    dense = mx.nd.array([[0, 0, 0], [1, 0, 2], [0, 0, 0], [0, 3, 0]])
    sparse = {stype: dense.tostype(stype) for stype in ("row_sparse", "csr")}
    mx.nd.save(str(folder / "sparse"), {**sparse, "none": mx.nd.zeros((3, 2), stype="row_sparse"), "dense": dense})
    mx.nd.save(str(folder / "list"), [dense, dense])
    with mx.util.np_shape(True):
        mx.nd.save(str(folder / "numpy"), {"scalar": mx.nd.ones(()), "empty": mx.nd.ones((0, 3)), "x": mx.nd.ones(4)})
    return sorted(path for path in folder.iterdir() if not path.name.endswith(".json"))


def headers(path):
    """(start, device, end) of each array's header in a sound file, and where its names begin."""
    with path.open("rb") as file:
        arrays = Walk(file, path, unnamed=True).arrays().values()
    places = [(one.offset - len(one.header), one.offset - 16 * len(one.parts) + 4, one.offset) for one in arrays]
    return places, max(one.offset + one.size for one in arrays)


def noise(random_, most):
    return bytes(random_.getrandbits(8) for _ in range(random_.randint(1, most)))


def flip(random_, data, spots):
    for _ in range(random_.choice([1, 1, 1, random_.randint(2, 8)])):
        data[random_.choice(spots)] ^= 1 << random_.randrange(8)


def put_word(random_, data, spots):
    spot, width = random_.choice(spots), random_.choice([1, 4, 8])
    word = random_.choice(WORDS) if random_.random() < 0.8 else random_.getrandbits(64)
    data[spot : spot + width] = (word % 2 ** (8 * width)).to_bytes(width, "little")


def resize(random_, data, spots):
    """Cut the file, lengthen it, or insert, delete, copy or replace a part of it."""
    spot, other, length = random_.choice(spots), random_.choice(spots), random_.randint(1, 64)
    place, end, new = random_.choice([
        (random_.randrange(len(data)), len(data), b""),
        (len(data), len(data), random_.choice([b"\0", b"\0" * 8, noise(random_, 64)])),
        (spot, spot, noise(random_, 8)),
        (spot, spot + random_.choice([1, 4, 8]), b""),
        (spot, spot + length, bytes(data[other : other + length])),
        (random_.choice([0, 8, 24, 40]), len(data), noise(random_, 200)),
    ])  # fmt: skip
    data[place:end] = new


def rename(random_, data, spots):
    word = random_.choice([b"weight", b"float", b"csr", b"2.", b"2."])
    # "2.bias" to "1.bias" gives a name twice
    other = b"1." if word == b"2." else random_.choice([b"bias\0\0", b"\xff" * 6, b"wei", b"weight", b"weight" * 200])
    place = data.rfind(word)
    if place >= 0:
        data[place : place + len(word)] = other


def damaged(random_, content, places, tail):
    """Change a file's bytes, mostly in headers and names, where it hurts."""
    data = bytearray(content)
    spots = [*range(24), *(spot for start, _, end in places for spot in range(start, end)), *range(tail, len(data))]
    words = [spot for start, device, end in places for spot in (*range(start, end, 4), device - 8)]
    how = random_.choice([*[resize] * 6, rename, *[flip] * 3, *[put_word] * 4])
    if random_.random() < 0.7:
        spots = [*words, 16, tail, tail + 8] if how is put_word else spots
    elif how is flip:
        spots = range(len(data))
    how(random_, data, spots)
    return bytes(data)


def outcome(read, path):
    """What a reader returns, or the text of its error."""
    try:
        read_by = read(path)
        mx.nd.waitall()
        return read_by
    except CheckpointError as error:
        return f"refused: {error}"
    except Exception as error:
        return f"other error: {type(error).__name__}: {error}"[:300]


def judge(path, arrays, aside):
    """Whether MXNet would write the file that was read."""
    if isinstance(arrays, str):
        return arrays if arrays.startswith("other error") else "refused"
    content = path.read_bytes()
    with mx.util.np_shape(content[24:28] == struct.pack("<I", V3)):
        mx.nd.save(str(aside), arrays)
    again = bytearray(aside.read_bytes())
    for start, device, _ in headers(aside)[0] if len(again) == len(content) else ():
        again[device : device + 8] = content[device : device + 8]
        if again[start + 4]:  # nd.save takes the stored shape of a sparse array before it waits for it
            again[start + 12 : start + 20] = content[start + 12 : start + 20]
    return "read" if again == content else "read what MXNet does not write"


def disagreement(received, arrays):
    """What the reader without MXNet (`received`) did otherwise than `read_arrays` (`arrays`); "" if nothing."""
    if isinstance(received, str):
        refused = isinstance(arrays, str) or BEYOND_NUMPY in received
        return "" if refused and not received.startswith("other error") else received
    if isinstance(arrays, str):
        return "it reads what is refused"
    for name, array in arrays.items():
        with mx.util.np_shape(True):
            values = array.asnumpy()
        if (values.shape, values.dtype) != (received[name].shape, received[name].dtype):
            return f"{name!r} differs in shape or dtype"
        if received[name].tobytes() != (values.view(np.uint8) != 0 if values.dtype == bool else values).tobytes():
            return f"{name!r} differs"
    return ""


def memory():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def peak():
    """Most memory in use since it was forgotten; getrusage would tell the parent's, where that had more."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


def grown(call, *arguments):
    """Return what a call returns, and the memory that it took at its peak."""
    before = memory()
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
    result = call(*arguments)
    return result, peak() - before


def measured(path, aside):
    """What became of a file, and what its reading cost at its peak."""
    received, cost = grown(outcome, read_numpy, path)
    arrays, other_cost = grown(outcome, read_arrays, path)
    if max(cost, other_cost) > 4 * path.stat().st_size + 32 * 2**20:
        return f"grew by {max(cost, other_cost) >> 20} MB"
    different = disagreement(received, arrays)
    return f"without MXNet: {different}" if different else judge(path, arrays, aside)


def work(folder):
    """The function that damages and reads one file."""
    known = [(path, path.read_bytes(), *headers(path)) for path in sources(folder)]
    read_arrays(folder / "big")

    def one(random_):
        path, content, places, tail = random_.choice(known)
        file = folder / "damaged.params"
        file.write_bytes(damaged(random_, content, places, tail))
        return path.name, measured(file, folder / "again.params")

    return one


def run(count, seed, script=__file__, kinds=FAILURES):
    """Read `count` damaged files, or what `script` makes of them, in worker processes.

    Args:
        count: How many.
        seed: Decides the damages.
        script: Run as `script --worker FOLDER ...` for each worker; SIGALRM ends one that hangs.
        kinds: Beginnings of results that are failures.

    Returns:
        How often each thing happened, and a line for each failure.
    """
    outcomes, failures, done = Counter(), [], 0
    environment = {**os.environ, "PYTHONPATH": str(Path(mxkit.__file__).parents[1])}
    while done < count:
        with tempfile.TemporaryDirectory() as folder:
            words = [sys.executable, script, "--worker", folder, "--seed", seed, "--first", done, "--count", count]
            worker = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, env=environment, text=True)
        results = [json.loads(line) for line in worker.stdout.splitlines() if line.startswith("[")]
        if worker.returncode:
            hung = worker.returncode == -signal.SIGALRM
            results.append(("?", f"hung for more than {SECONDS} s" if hung else f"crashed: {worker.returncode}"))
        for name, result in results:
            outcome = next((kind for kind in kinds if result.startswith(kind)), result)
            outcomes[outcome] += 1
            if outcome in kinds:
                failures.append(f"number {done} of seed {seed}, {name}: {result}")
            done += 1
    return outcomes, failures


def main(description, work, run):
    """Run the command line of a fuzzing script."""
    parser = argparse.ArgumentParser(description=description.split("\n\n")[0])
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.worker:
        one = work(asked.worker)
        for number in range(asked.first, asked.count):
            signal.alarm(SECONDS)
            sys.stdout.write(json.dumps(one(random.Random(f"{asked.seed} {number}"))) + "\n")
            sys.stdout.flush()
        signal.alarm(0)
        return 0
    outcomes, failures = run(asked.count, asked.seed)
    sys.stdout.write("".join(f"{number:6} {outcome}\n" for outcome, number in outcomes.most_common()))
    sys.stdout.write("".join(f"{failure}\n" for failure in failures))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(__doc__, work, run))
