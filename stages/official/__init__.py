"""Checkpoints of the official PyTorch code: its layout, and imports and exports in it."""
