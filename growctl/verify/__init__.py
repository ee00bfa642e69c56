"""`growctl verify`: files checked against their recorded hashes, and the table of what was found."""
