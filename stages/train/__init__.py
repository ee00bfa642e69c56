"""The training loop of a worker: steps, evaluation, anomalies, data to skip."""
