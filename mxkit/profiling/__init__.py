"""Where an update's time goes: phases, operators, who waits, and what would help."""
