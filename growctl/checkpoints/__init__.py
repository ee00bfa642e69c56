"""Checkpoints as a user names them: finding one, reading an engine checkpoint, showing where one comes from."""
