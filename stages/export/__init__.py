"""Exports of checkpoints to the formats of other programs."""
