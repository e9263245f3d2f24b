"""Gradients as functions, checked against differences, and of one's own."""

from mxkit.gradients.functions import grad as grad
from mxkit.gradients.functions import jacobian as jacobian
from mxkit.gradients.functions import value_and_grad as value_and_grad
