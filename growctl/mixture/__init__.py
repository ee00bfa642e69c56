"""Mixtures: preparing and finding their sources, and how much of each source a schedule reads."""
