"""The cost record of a run: append-only, every row hashed, one SQLite file."""
