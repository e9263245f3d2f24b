"""Every net of MXNet's zoo, described and built, gives equal outputs: `python tests/zoo/round_trips.py`.

Some minutes and 4 GB of memory on two cores, so the tests take the small ones. With --gluoncv also gluoncv's nets that
can be made without the network, by their description alone, each in a process of its own: about half an hour.
"""

import argparse
import json
import subprocess
import sys
import time
import warnings

from check_features import DEEPER
import mxkit
from mxkit.core.blocks import parameters_by_path
from mxkit.models.registry import get_model
from mxkit.nets.architecture import build, describe
from mxkit.nets.architecture.catalog import zoo_names
from mxkit.storage.loading import put_arrays
import mxnet as mx

SECONDS = 300


def side_of(name):
    """A small side of an image on which every layer of a net has something to do."""
    if "inception" in name:
        return 299
    return 224 if name.startswith(("densenet", "squeezenet")) else 64


def compare(name):
    """Round trip of a net of MXNet's zoo; says what is unequal, or nothing."""
    mxkit.seed_all(0)
    net = get_model(f"zoo:{name}", classes=7)
    net.initialize(mx.init.Xavier(magnitude=3))
    x = mx.nd.random.uniform(-1, 1, (1, 3, side_of(name), side_of(name)))
    expected = net(x).asnumpy()
    told = describe(net)
    text = json.dumps(told)
    twin = build(json.loads(text))
    if json.dumps(describe(twin)) != text:
        return "the description differs"
    put_arrays(twin, {path: parameter.data() for path, parameter in parameters_by_path(net).items()})
    return "" if expected.any() and twin(x).asnumpy().tobytes() == expected.tobytes() else "the outputs differ"


def compare_description(name):
    """Round trip of a net of gluoncv's, uninitialized; says what is unequal, or nothing."""
    warnings.simplefilter("ignore")  # of gluoncv's imports
    try:
        net = get_model(f"gluoncv:{name}", **({"classes": ["a", "b"]} if "custom" in name else {}))
    except (ValueError, TypeError) as error:
        sys.stdout.write(f"{name}: not made: {str(error)[:100]}\n")
        return ""
    told = describe(net)
    return "" if describe(build(json.loads(json.dumps(told)))) == told else "the description differs"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="nets of MXNet's zoo; none are all")
    parser.add_argument("--families", action="store_true", help="without nets that are only deeper or wider")
    parser.add_argument("--gluoncv", action="store_true")
    parser.add_argument("--one", help="one net of gluoncv's, in this process")
    arguments = parser.parse_args()
    if arguments.one:
        sys.exit(compare_description(arguments.one) or 0)
    failed = []
    left_out = DEEPER if arguments.families else set()
    for name in arguments.names or [name for name in zoo_names("zoo") if name not in left_out]:
        started = time.monotonic()
        wrong = compare(name)
        failed += [name] * bool(wrong)
        sys.stdout.write(f"{name}: {wrong or 'equal'} ({time.monotonic() - started:.1f} s)\n")
        sys.stdout.flush()
    for name in zoo_names("gluoncv") if arguments.gluoncv else []:
        done = subprocess.run([sys.executable, __file__, "--one", name], check=False, timeout=SECONDS)
        failed += [f"gluoncv:{name}"] * bool(done.returncode)
    sys.exit(f"not equal: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
