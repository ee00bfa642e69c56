"""The commands: each parses its arguments, calls what does the work, and prints."""
