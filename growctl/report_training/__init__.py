"""How training went, for the report: losses, recovery after growth, where the time went, loss by position."""
