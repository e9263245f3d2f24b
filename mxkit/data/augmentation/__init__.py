"""Random changes of images, as a function of the sample."""
