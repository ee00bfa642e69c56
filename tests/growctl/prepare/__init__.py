"""growctl/prepare/: the executors."""
