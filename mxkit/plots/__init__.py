"""Pictures: samples, and what a net computes and learns."""
