"""Small nets from a forward pass and children."""

import warnings

import mxkit
from mxkit.core.arrays import arrays_in
from mxkit.core.blocks import blocks_by_path, distinct, first_paths
from mxnet import gluon
from mxnet.gluon import nn


def hybrid_net(hybrid_forward, prefix=None, **children):
    """A HybridBlock whose `hybrid_forward(net, F, *inputs)` is a function."""
    return _net(gluon.HybridBlock, {"hybrid_forward": hybrid_forward}, children, prefix)


def plain_net(forward, **children):
    """A Block whose `forward(net, *inputs)` is a function."""
    return _net(gluon.Block, {"forward": forward}, children)


def _net(base, methods, children, prefix=None):
    net = type("Net", (base,), methods)(prefix=prefix)
    for name, child in children.items():
        setattr(net, name, child)
    return net


def stack(*layers, kind=nn.HybridSequential, **arguments):
    net = kind(**arguments)
    net.add(*layers)
    return net


def ready(*layers, initializer="xavier", **how):
    """A layer, or a stack of several, with values; `how` is of `mxkit.initialize`."""
    net = layers[0] if len(layers) == 1 else stack(*layers)
    mxkit.initialize(net, initializer, **how)
    return net


def imported(path):
    """The SymbolBlock that Gluon itself makes of exported files, without its warning of inputs without a type."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return gluon.SymbolBlock.imports(f"{path}-symbol.json", ["data"], f"{path}-0000.params")


def make_norms():
    return stack(nn.Conv2D(4, 3), nn.BatchNorm(), nn.PReLU(), nn.LayerNorm(scale=False), nn.Dense(3))


def by_hooks(net, inputs):
    """Arrays of each call of each block, by its first path, of a net that is not hybridized."""
    blocks = dict(blocks_by_path(net))
    first, calls, handles = first_paths(blocks), {}, []

    def seen(block, arguments, output):
        calls.setdefault(first[id(block)], []).append(arrays_in([output]))

    for block in distinct(blocks).values():
        handles.append(block.register_forward_hook(seen))
    net(*inputs)
    for handle in handles:
        handle.detach()
    return calls
