"""The schema of a schedule: its blocks, their keys, and types for quantities."""
