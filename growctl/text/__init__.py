"""Text on its way to people: numbers, escaping, the console."""
