"""Runs as their ledgers and metrics record them, and which of them share data."""
