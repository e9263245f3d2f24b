"""Fits the mean and variance of a normal distribution by maximum a posteriori inference.

用最大后验推断求正态分布的均值和方差。
"""

from mxfusion import Model, Variable
from mxfusion.components.distributions import Normal
from mxfusion.components.variables.var_trans import PositiveTransformation
from mxfusion.inference import MAP, GradBasedInference
import mxnet as mx

model = Model()
model.mu = Variable()
model.s = Variable(transformation=PositiveTransformation())
model.Y = Normal.define_variable(mean=model.mu, variance=model.s, shape=(100,))
data = mx.nd.random.normal(3, 2, shape=(100,))
inference = GradBasedInference(inference_algorithm=MAP(model=model, observed=[model.Y]))
inference.run(Y=data, learning_rate=0.1, max_iter=300)
print(float(inference.params[model.mu].asnumpy()), float(inference.params[model.s].asnumpy()))
