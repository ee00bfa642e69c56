"""Checkpoints as a user names them: finding one and showing where it comes from."""
