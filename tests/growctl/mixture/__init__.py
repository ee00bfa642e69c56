"""Tests of mixtures in schedules, plans and runs."""
