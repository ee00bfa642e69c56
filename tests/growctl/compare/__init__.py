"""Tests of growctl/compare/."""
