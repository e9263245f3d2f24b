"""What features cost beside a net cut by hand and beside the whole forward pass, on resnet18_v1 at 224 px, batch 8.

The ways take turns, and which begins changes from round to round. Ratios of the wall time of a round: median, spread,
and that of the best times, which other work on the machine disturbs least. `python -m benchmarks.features [ROUNDS]`.

- Features: `mxkit.Features(net, names)`, of a net that is not hybridized itself.
- cut by hand: a hybridized HybridSequential of `net.features[:5]`, one that returns three of them for three layers.
- hooks: what people write: the unhybridized net runs to its end, hooks keep the outputs.
- forward: the whole net, hybridized.

Then what a call costs without its operators: of a net that is one activation, and of resnet152.
"""

import statistics
import sys
import time

import mxkit  # before mxnet
import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn
from mxnet.gluon.model_zoo import vision

BATCH, SIZE = 8, 224


class Three(gluon.HybridBlock):
    """Hands out what the third, the fifth and the sixth part of a net give."""

    def __init__(self, parts):
        super().__init__()
        self.parts = parts

    def hybrid_forward(self, F, x):  # noqa: N803
        outputs = []
        for number, part in enumerate(self.parts):
            x = part(x)
            outputs += [x] if number in (2, 4, 5) else []
        return outputs


def seconds_of(run):
    begun = time.perf_counter()
    run()
    mx.nd.waitall()
    return time.perf_counter() - begun


def with_hooks(net, blocks, x):
    kept = []
    handles = [block.register_forward_hook(lambda block, inputs, output: kept.append(output)) for block in blocks]
    net(x)
    for handle in handles:
        handle.detach()
    return kept


def fresh(x):
    mxkit.seed_all(0)
    net = vision.resnet18_v1()
    mxkit.initialize(net, "xavier")
    net(x)
    return net


def ways():
    """Functions by name, for each of the two tasks; each on a net of its own with the same weights."""
    x = mx.nd.random.uniform(shape=(BATCH, 3, SIZE, SIZE))
    net, hooked, whole, cut, three = fresh(x), fresh(x), fresh(x), nn.HybridSequential(), Three(fresh(x).features[:6])
    cut.add(*fresh(x).features[:5])
    for one in (whole, cut, three):
        one.hybridize()
    names = ["features.2", "features.4", "features.5"]
    one, several = mxkit.Features(net, names[1]), mxkit.Features(net, names)
    blocks = [hooked.features[number] for number in (2, 4, 5)]
    return {
        names[1]: {
            "Features": lambda: one(x),
            "cut by hand": lambda: cut(x),
            "hooks": lambda: with_hooks(hooked, blocks[1:2], x),
            "forward": lambda: whole(x),
        },
        ", ".join(names): {
            "Features": lambda: several(x),
            "cut by hand": lambda: three(x),
            "hooks": lambda: with_hooks(hooked, blocks, x),
            "forward": lambda: whole(x),
        },
    }


def overhead(name, net, x):
    """Print the processor time of the calling thread; what the engine's threads compute is not in it."""
    net.initialize()
    net.hybridize()
    features = mxkit.Features(net, "")
    taken = {"Features": [], "net": []}
    for number in range(31):
        for way, run in [("Features", features), ("net", net)]:
            begun = time.thread_time()
            run(x)
            passed = time.thread_time() - begun
            mx.nd.waitall()
            if number:
                taken[way].append(1e6 * passed)
    mine, its = (statistics.median(values) for values in taken.values())
    print(f"a call of {name}: Features {mine:.0f} us, the hybridized net {its:.0f} us")


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    for names, runs in ways().items():
        for run in runs.values():
            run()
        mx.nd.waitall()
        taken = {way: [] for way in runs}
        for number in range(rounds):
            order = list(runs)[number % len(runs) :] + list(runs)[: number % len(runs)]
            for way in order:
                taken[way].append(seconds_of(runs[way]))
        print(f"{names}, {rounds} rounds")
        for way, seconds in taken.items():
            line = f"  {way:12}{1e3 * statistics.median(seconds):7.1f} ms"
            for other in ("cut by hand", "forward"):
                each = [one / two for one, two in zip(seconds, taken[other])]
                best = min(seconds) / min(taken[other])
                line += (
                    f"  {statistics.median(each):.3f} x {other} ({min(each):.2f} to {max(each):.2f}, best {best:.3f})"
                )
            print(line)
    overhead("one activation", nn.Activation("relu"), mx.nd.ones((1, 4)))
    overhead("resnet152_v1", vision.resnet152_v1(), mx.nd.ones((1, 3, 32, 32)))
    net, x = vision.resnet152_v1(), mx.nd.ones((1, 3, 32, 32))
    net.initialize()
    net(x)
    features = mxkit.Features(net, "*")
    print(f"first call of Features, all layers of resnet152_v1: {seconds_of(lambda: features(x)):.2f} s")


if __name__ == "__main__":
    main()
