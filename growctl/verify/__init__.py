"""`growctl verify`: checks files against their recorded hashes, and formats the result."""
