"""One network applied to several inputs."""

from typing import Any

from mxkit.nets.architecture.catalog import register_block
from mxnet import gluon


@register_block
class Siamese(gluon.HybridBlock):  # type: ignore[misc]
    """One branch, with one set of weights, applied to each input.

    `net(a, b)` gives `[branch(a), branch(b)]`, which `ContrastiveLoss` takes; `net(anchor, positive, negative)` gives
    three outputs for `TripletLoss`. `mxkit.data.PairLoader` makes batches for `mxkit.fit`. BatchNorm in the branch
    computes its statistics for each input separately.

    Args:
        branch: A HybridBlock with one input and one output. It can also be used alone.

    Raises:
        TypeError: `branch` is not a HybridBlock.

    >>> net = Siamese(mx.gluon.nn.Dense(2)); mxkit.initialize(net)
    >>> [output.shape for output in net(mx.nd.ones((3, 4)), mx.nd.ones((3, 4)))]
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
        return [self.branch(x) for x in inputs]
