"""Trackers: TensorBoard, W&B, MLflow and trackio, each fed with the records of a run by a process beside it."""
