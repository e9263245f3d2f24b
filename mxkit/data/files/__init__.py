"""Datasets as files: where they come from, where they are kept, and how they are read."""
