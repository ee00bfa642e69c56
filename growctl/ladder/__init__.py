"""The stages of a schedule, computed from its text alone: sizes, steps, FLOPs, and worker specs."""
