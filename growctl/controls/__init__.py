"""Controls: the runs that a schedule generates to compare growing with."""
