"""Compares two runs: what differs in their schedules, how fair a comparison is, what each cost, which is better."""
