"""Every net of MXNet's zoo, described and built, gives equal outputs: `python tests/zoo/round_trips.py`.

Some minutes and 4 GB of memory on two cores, so the tests take the small ones.
"""

import argparse
import json
import sys
import time

from check_features import DEEPER, ZOO
import mxkit
from mxkit.core.blocks import parameters_by_path
from mxkit.models.registry import get_model
from mxkit.nets.architecture import build, describe
from mxkit.nets.architecture.catalog import zoo_names
from mxkit.storage.loading import put_arrays
import mxnet as mx


def compare(name):
    """Round trip of a net of MXNet's zoo; says what is unequal, or nothing."""
    mxkit.seed_all(0)
    net = get_model(f"zoo:{name}", classes=7)
    net.initialize(mx.init.Xavier(magnitude=3))
    x = mx.nd.random.uniform(-1, 1, (1, 3, *ZOO[name]))
    expected = net(x).asnumpy()
    told = describe(net)
    text = json.dumps(told)
    twin = build(json.loads(text))
    if json.dumps(describe(twin)) != text:
        return "the description differs"
    put_arrays(twin, {path: parameter.data() for path, parameter in parameters_by_path(net).items()})
    return "" if expected.any() and twin(x).asnumpy().tobytes() == expected.tobytes() else "the outputs differ"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="nets of MXNet's zoo; none are all")
    parser.add_argument("--families", action="store_true", help="without nets that are only deeper or wider")
    arguments = parser.parse_args()
    failed = []
    left_out = DEEPER if arguments.families else set()
    for name in arguments.names or [name for name in zoo_names("zoo") if name not in left_out]:
        started = time.monotonic()
        wrong = compare(name)
        failed += [name] * bool(wrong)
        sys.stdout.write(f"{name}: {wrong or 'equal'} ({time.monotonic() - started:.1f} s)\n")
        sys.stdout.flush()
    sys.exit(f"not equal: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
