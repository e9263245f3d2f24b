"""The ladder: Accumulator, updates, fit; evaluate and predict."""
