"""Networks, and one registry that also reaches MXNet's and gluoncv's model zoos."""

from .alexnet import alexnet as alexnet
from .densenet import densenet121 as densenet121
from .googlenet import googlenet as googlenet
from .networks import lenet as lenet
from .networks import lenet5 as lenet5
from .networks import linear_regression as linear_regression
from .networks import mlp as mlp
from .networks import softmax_regression as softmax_regression
from .nin import nin as nin
from .registry import get_model as get_model
from .registry import model_names as model_names
from .resnet import resnet18 as resnet18
from .resnet import resnet34 as resnet34
from .resnet import resnet50 as resnet50
from .siamese import Siamese as Siamese
from .sizes import SizedNet as SizedNet
from .sizes import usable_sizes as usable_sizes
from .vgg import vgg11 as vgg11
from .vgg import vgg13 as vgg13
from .vgg import vgg16 as vgg16
from .vgg import vgg19 as vgg19

__all__ = [
    "Siamese",
    "SizedNet",
    "alexnet",
    "densenet121",
    "get_model",
    "googlenet",
    "lenet",
    "lenet5",
    "linear_regression",
    "mlp",
    "model_names",
    "nin",
    "resnet18",
    "resnet34",
    "resnet50",
    "softmax_regression",
    "usable_sizes",
    "vgg11",
    "vgg13",
    "vgg16",
    "vgg19",
]
