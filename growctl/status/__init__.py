"""How far runs are, from their files alone."""
