"""Trackers: TensorBoard, W&B, MLflow and trackio, fed with the records of a run, each in a process of its own."""
