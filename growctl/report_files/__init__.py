"""The files of a report: where they go, what is among them, and how they get there whole."""
