"""Runs that differ in nothing but their seed: means, intervals, sweeps, ladders compared, and the headline."""
