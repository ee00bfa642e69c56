"""Controls: the runs that growctl generates from a schedule as a baseline for growing."""
