"""Protocols between the runner and its workers: lifelines, requests to save, stalls."""
