"""The DeepSpeed engine of a worker: how it is built, saved and loaded, its memory, its process."""
