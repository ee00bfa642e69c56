"""The exceptions whose messages are for the user; any other exception is a bug."""


class UserError(ValueError):
    """Input that the user can fix: a schedule, an option, a file. growctl prints the message and exits with code 2.

    It is a ValueError, so callers of the library can catch it as one.
    """


class Failure(RuntimeError):
    """Work that failed although the input was valid: the disk is full, training diverged. growctl prints the message
    and exits with code 1."""
