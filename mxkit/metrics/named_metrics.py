"""Metrics by name. Each computes one figure for a whole data set, which does not depend on the batches."""

import copy
import re
import reprlib
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

from mxkit.core.arguments import Plugged, make, split_spec
from mxkit.errors import UnknownNameError, unknown_name
from mxkit.metrics import detection, figures
from mxkit.metrics.metric import Metric
from mxkit.metrics.of_mxnet import wrapped
import mxnet as mx

MetricSpec = Union[str, Tuple[str, Mapping[str, Any]], Metric, "mx.metric.EvalMetric"]

_CLASSES = "Accuracy ConfusionMatrix CrossEntropy F1 MAE MCC MSE PearsonR Perplexity Precision R2 Recall RMSE"
_DETECTION = "COCOMeanAP MeanIoU OKS PCK PixelAccuracy VOCMeanAP"
METRICS: Dict[str, Callable[..., Metric]] = {
    **{kind.name: kind for kind in map(vars(figures).__getitem__, f"{_CLASSES} SubsetAccuracy".split())},
    **{kind.name: kind for kind in map(vars(detection).__getitem__, _DETECTION.split())},
    "top_k": figures.TopK,
}
METRICS = Plugged("mxkit.metrics", METRICS)
# Figures that no class of metrics here computes: the loss, those of pairs, and MXNet's name of the cross-entropy.
_OTHER_FIGURES = {"loss": "min", "nll-loss": "min", "pair_accuracy": "max", "triplet_accuracy": "max"}
# Figures that depend on the order of all scores: no sum over batches gives them.
_OF_RANKS = {"auc", "roc_auc", "roc_auc_score", "average_precision", "pr_auc"}


def own_metrics() -> Dict[str, Any]:
    """Metrics that a user has registered by `mx.metric.register`, by name."""
    registered = mx.registry.get_registry(mx.metric.EvalMetric)
    return {name: kind for name, kind in registered.items() if kind.__module__ != mx.metric.__name__}


def better_of(figure: str) -> Optional[str]:
    """Whether the "max" or "min" of a loss or metric is better, by its name in a history; None if it is unknown.

    >>> better_of("top_5_accuracy"), better_of("rmse"), better_of("my_metric")
    ('max', 'min', None)
    """
    if re.fullmatch(r"top_(\d+_accuracy|k_accuracy_\d+)", figure):
        return figures.TopK.better
    named = {kind.name: kind.better for kind in METRICS.values() if isinstance(kind, type) and issubclass(kind, Metric)}
    return {**named, **_OTHER_FIGURES}.get(figure)


def get_metric(spec: MetricSpec, *, loss: Any = None) -> Metric:
    """Return a new metric for `spec`; a metric object is copied.

    Args:
        spec: A name of `METRICS`, one that was registered by `mx.metric.register`, a pair of a name and its arguments,
            a `Metric` or an `mx.metric.EvalMetric`.
        loss: The loss that the net is trained with: it decides what outputs mean. None infers that from shapes.

    Raises:
        UnknownNameError: No metric has this name; the known ones and the nearest are listed.
        TypeError: `spec` has another form.
        ValueError: `spec` is a CompositeEvalMetric of several metrics: pass it to `get_metrics`.
    """
    metrics = _metrics_of(spec)
    if len(metrics) != 1:
        raise ValueError(f"metric: expected one; received {[metric.name for metric in metrics]}")
    metrics[0].loss = loss
    return metrics[0]


def get_metrics(specs: Sequence[MetricSpec], *, loss: Any = None) -> List[Metric]:
    """Return new metrics; their names must differ. A CompositeEvalMetric gives one for each of its metrics.

    Args:
        specs: As for `get_metric`.
        loss: As for `get_metric`.

    Raises:
        ValueError: Two metrics have the same name, or one is called "loss".
        TypeError: `specs` is one metric instead of a list.
    """
    if isinstance(specs, (str, Metric, mx.metric.EvalMetric)) or not isinstance(specs, Iterable):
        raise TypeError(f"metrics: expected a list, like ['accuracy'], or () for none; received {specs!r:.100}")
    metrics = [metric for spec in specs for metric in _metrics_of(spec)]
    for metric in metrics:
        metric.loss = loss
    names = [metric.name for metric in metrics]
    if "loss" in names:
        raise ValueError("metrics: 'loss' is the column of the loss: give the metric another name")
    if len(set(names)) != len(names):
        way = 'Name one: ("f1", {"average": "micro", "name": "f1_micro"})'
        raise ValueError(f"metrics: names must differ; received {names}. {way}")
    return metrics


def _metrics_of(spec: Any) -> List[Metric]:
    spec, arguments = split_spec(spec)
    if isinstance(spec, str):
        return _by_name(spec, arguments)
    if isinstance(spec, mx.metric.EvalMetric):
        return wrapped(spec)
    if isinstance(spec, Metric):
        metric = copy.deepcopy(spec)
        metric.reset()
        return [metric]
    raise TypeError(
        f"metric: expected a name, (name, arguments) or a metric; received {reprlib.repr(spec)}. Of a class make an "
        "object, of a function that gets (labels, output) and returns one value per sample mxkit.metrics.Mean(function)"
    )


def _by_name(name: str, arguments: Mapping[str, Any]) -> List[Metric]:
    registered = own_metrics()
    if name in METRICS:
        return [make("metric", name, METRICS[name], arguments)]
    if name.lower() in registered:
        return wrapped(make("metric", name, registered[name.lower()], arguments))
    if name.lower() in _OF_RANKS:
        raise UnknownNameError(
            f"unknown metric {name!r}: it follows from the order of all scores, which no sum over batches gives. "
            "Use scikit-learn: roc_auc_score(y, mxkit.predict(net, x).asnumpy())"
        )
    raise unknown_name("metric", name, {*METRICS, *registered})
