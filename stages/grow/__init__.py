"""Growing a checkpoint, and comparing two checkpoints as functions."""
