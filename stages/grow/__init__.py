"""Grows a checkpoint, and compares two checkpoints as functions."""
