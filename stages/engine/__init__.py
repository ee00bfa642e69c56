"""The DeepSpeed engine of a worker: building it, its state in and out, its memory, its process."""
