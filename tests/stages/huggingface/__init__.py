"""Tests of stages/huggingface/."""
