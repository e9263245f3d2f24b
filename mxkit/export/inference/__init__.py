"""Nets that only predict: made fast, and asked by many threads."""
