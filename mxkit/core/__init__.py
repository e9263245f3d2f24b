"""Shared by every room: access to Gluon's private attributes, devices and batches, Trainers, seeds."""
