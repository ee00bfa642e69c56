"""Text for people: numbers, escaping, the console."""
