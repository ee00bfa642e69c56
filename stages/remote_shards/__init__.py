"""Reads tokens that lie elsewhere in ranges, through a bounded cache on this machine. Knows no network."""
