"""Metrics: figures of a whole part of the data, summed on the device."""

from mxkit.metrics.by_name import METRICS as METRICS
from mxkit.metrics.by_name import MetricSpec as MetricSpec
from mxkit.metrics.by_name import get_metric as get_metric
from mxkit.metrics.by_name import get_metrics as get_metrics
from mxkit.metrics.classification import F1 as F1
from mxkit.metrics.classification import MCC as MCC
from mxkit.metrics.classification import Accuracy as Accuracy
from mxkit.metrics.classification import ConfusionMatrix as ConfusionMatrix
from mxkit.metrics.classification import Precision as Precision
from mxkit.metrics.classification import Recall as Recall
from mxkit.metrics.classification import SubsetAccuracy as SubsetAccuracy
from mxkit.metrics.classification import TopK as TopK
from mxkit.metrics.likelihood import CrossEntropy as CrossEntropy
from mxkit.metrics.likelihood import Perplexity as Perplexity
from mxkit.metrics.metric import Mean as Mean
from mxkit.metrics.metric import Metric as Metric
from mxkit.metrics.of_mxnet import MXNetMetric as MXNetMetric
from mxkit.metrics.regression import MAE as MAE
from mxkit.metrics.regression import MSE as MSE
from mxkit.metrics.regression import R2 as R2
from mxkit.metrics.regression import RMSE as RMSE
from mxkit.metrics.regression import PearsonR as PearsonR
