"""One network applied to several inputs."""

from typing import Any

from mxkit.nets.architecture.registered import register_block
from mxnet import gluon


@register_block
class Siamese(gluon.HybridBlock):  # type: ignore[misc]
    """One branch, with one set of weights, applied to each input.

    `net(a, b)` gives `[branch(a), branch(b)]`, which `ContrastiveLoss` takes; `net(anchor, positive, negative)` gives
    three outputs for `TripletLoss`. Batches for `mxkit.fit` come from `mxkit.data.PairLoader`. BatchNorm in the
    branch takes its statistics from each input by itself.

    Args:
        branch: A HybridBlock, of one input and one output. It stays usable on its own.

    Raises:
        TypeError: `branch` is no HybridBlock.

    >>> net = Siamese(mx.gluon.nn.Dense(2)); mxkit.initialize(net)
    >>> [one.shape for one in net(mx.nd.ones((3, 4)), mx.nd.ones((3, 4)))]
    [(3, 2), (3, 2)]
    """

    def __init__(self, branch: Any, **kwargs: Any) -> None:
        if not isinstance(branch, gluon.HybridBlock):
            raise TypeError(
                f"Siamese: branch: expected a HybridBlock; received {branch!r:.100}. Use HybridSequential in place of "
                "Sequential, or write hybrid_forward in place of forward"
            )
        super().__init__(**kwargs)
        self.branch = branch

    def hybrid_forward(self, F: Any, *inputs: Any) -> Any:  # noqa: N803
        return [self.branch(one) for one in inputs]
