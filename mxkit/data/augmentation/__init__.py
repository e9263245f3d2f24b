"""Images changed at random, as a function of the sample."""
