"""What runs while Python starts, under `mxkit run` or after `mxkit enable`: it imports nothing that Python has not."""
