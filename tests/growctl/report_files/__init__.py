"""Tests of a report's files."""
