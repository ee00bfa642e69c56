"""Checkpoints of the official PyTorch code: their layout, and how they are imported."""
