"""What every room stands on: Gluon's inside, devices and batches, Trainers, seeds."""
