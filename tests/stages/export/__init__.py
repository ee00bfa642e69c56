"""Tests of stages/export/."""
