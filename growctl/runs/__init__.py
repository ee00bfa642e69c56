"""Runs as their ledgers and metrics record them: reading them, finding them, and which of them share data."""
