"""The commands: each parses its arguments, calls a function, and prints the result."""
