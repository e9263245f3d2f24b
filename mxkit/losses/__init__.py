"""Losses by name and as objects. Every loss gives one value per sample."""

from mxkit.losses.by_name import LOSSES as LOSSES
from mxkit.losses.by_name import CosineEmbeddingLoss as CosineEmbeddingLoss
from mxkit.losses.by_name import Forward as Forward
from mxkit.losses.by_name import ForwardLoss as ForwardLoss
from mxkit.losses.by_name import LogisticLoss as LogisticLoss
from mxkit.losses.by_name import Loss as Loss
from mxkit.losses.by_name import LossSpec as LossSpec
from mxkit.losses.by_name import PoissonNLLLoss as PoissonNLLLoss
from mxkit.losses.by_name import SigmoidBCELoss as SigmoidBCELoss
from mxkit.losses.by_name import WeightedSigmoidBCELoss as WeightedSigmoidBCELoss
from mxkit.losses.by_name import forward_function as forward_function
from mxkit.losses.by_name import get_loss as get_loss
from mxkit.losses.by_name import sigmoid_bce as sigmoid_bce
from mxkit.losses.by_name import softmax_ce as softmax_ce
from mxkit.losses.classification import ClassWeight as ClassWeight
from mxkit.losses.classification import ClassWeights as ClassWeights
from mxkit.losses.classification import FocalLoss as FocalLoss
from mxkit.losses.classification import KnowledgeDistillation as KnowledgeDistillation
from mxkit.losses.classification import LabelSmoothing as LabelSmoothing
from mxkit.losses.classification import WeightedSoftmaxCELoss as WeightedSoftmaxCELoss
from mxkit.losses.distances import ContrastiveLoss as ContrastiveLoss
from mxkit.losses.distances import TripletLoss as TripletLoss
