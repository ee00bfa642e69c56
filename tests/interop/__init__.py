"""Checks of exports in the versions of Transformers that growctl supports, in environments without growctl."""
