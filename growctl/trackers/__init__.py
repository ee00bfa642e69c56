"""Trackers: TensorBoard, W&B, MLflow and trackio, fed with the records of a run by one process beside it."""
