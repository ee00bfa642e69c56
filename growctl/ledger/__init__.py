"""The cost record of a run: one append-only SQLite file in which every row is hashed."""
