"""One run from start to end: requests, attempts at stages, resuming, locks and signals."""
