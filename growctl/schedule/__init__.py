"""Loads a schedule from its YAML file and overrides, with an error message for every mistake."""
