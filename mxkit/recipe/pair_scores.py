"""How often a siamese net's distances are right."""

from typing import Any, Dict, Optional, Tuple

from mxkit.data.splits import Splits
from mxkit.losses.distances import pair_accuracy, triplet_accuracy
from mxkit.recipe.batches import batches, has_samples
from mxkit.recipe.schema import Recipe
from mxkit.training.evaluation import predict
import mxnet as mx


def pair_scores(recipe: Recipe, net: Any, data: Splits, split: str) -> Dict[str, float]:
    """`triplet_accuracy`, or `pair_accuracy` with the threshold that is best on the validation part's pairs.

    Args:
        recipe: One with `data.pairs`.
        net: Trained.
        data: Of the recipe.
        split: The part that is reported on.
    """
    if recipe.data.pairs is not None and recipe.data.pairs.kind == "triplets":
        return {"triplet_accuracy": triplet_accuracy(*predict(net, batches(recipe, data, split)))}
    threshold: Optional[float] = None
    if split != "valid" and has_samples(data.valid):
        threshold = pair_accuracy(*_embedded(recipe, net, data, "valid")).threshold
    return {"pair_accuracy": pair_accuracy(*_embedded(recipe, net, data, split), threshold=threshold).accuracy}


def _embedded(recipe: Recipe, net: Any, data: Splits, split: str) -> Tuple[Any, Any, Any]:
    pairs = batches(recipe, data, split)
    a, b = predict(net, pairs)
    return a, b, mx.nd.concat(*[same for _, same in pairs], dim=0)
