"""How far a training run has come, in figures, and the view of them that a terminal redraws."""
