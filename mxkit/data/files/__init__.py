"""Files of datasets: downloads, the cache, and readers of their formats."""
