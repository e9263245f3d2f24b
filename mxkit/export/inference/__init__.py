"""Nets that predict fast: optimized for the processor, and behind a queue for servers."""
