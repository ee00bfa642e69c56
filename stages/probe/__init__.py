"""Processes that `growctl doctor` and `growctl plan --measure` start to measure a machine."""
