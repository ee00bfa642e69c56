"""`growctl doctor`: checks of this machine, each with its fix."""
