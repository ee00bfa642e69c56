"""Looks inside a model on real text: gradients, activations, scores, and the use of parameter tokens."""
