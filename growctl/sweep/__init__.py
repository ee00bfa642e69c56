"""Sets of runs of one schedule: several seeds, or the points of a sweep."""
