"""`growctl generate`: what it prints for scripts."""
