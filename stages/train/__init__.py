"""The training loop of a worker: steps, evaluation, anomalies, skipped data."""
