"""What is done to a net: initialize, move, freeze, look inside, describe, build, replace, fine-tune, save."""
