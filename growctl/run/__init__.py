"""Runs from start to end: requests, sets of runs, attempts at stages, resuming, reuse, the live screen."""
