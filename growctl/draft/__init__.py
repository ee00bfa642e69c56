"""Drafts a schedule from a number of parameters, for `growctl init`."""
