"""Exports: a checkpoint as files that other programs load."""
