"""What `growctl doctor` and `growctl plan --measure` start on a machine to measure it."""
