"""`growctl eval`: its settings, its tables, and its results in a run's ledger."""
