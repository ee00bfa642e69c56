"""The progress of runs, read from their files alone."""
