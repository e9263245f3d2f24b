from .channels import plot_features as plot_features
from .data_plots import show_augment as show_augment
from .data_plots import show_batch as show_batch
from .data_plots import show_data as show_data
from .data_plots import show_images as show_images
from .distributions import plot_activations as plot_activations
from .gradients import plot_gradients as plot_gradients
from .kernels import plot_filters as plot_filters
