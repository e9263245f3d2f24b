"""Networks, and one registry that also reaches MXNet's and gluoncv's model zoos."""

from .networks import lenet as lenet
from .networks import mlp as mlp
from .networks import softmax_regression as softmax_regression
from .registry import get_model as get_model
from .registry import model_names as model_names

__all__ = ["get_model", "lenet", "mlp", "model_names", "softmax_regression"]
