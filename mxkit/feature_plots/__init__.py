"""Pictures of what a net computes and learns: channels, kernels, distributions, gradients."""

from .channels import Pictures as Pictures
from .channels import plot_features as plot_features
from .distributions import plot_activations as plot_activations
from .gradients import plot_gradients as plot_gradients
from .kernels import plot_filters as plot_filters

__all__ = ["Pictures", "plot_activations", "plot_features", "plot_filters", "plot_gradients"]
