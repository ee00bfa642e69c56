"""Tests of stages/official/."""
