"""The error that a command reports to its user instead of a traceback."""


class UserError(Exception):
    """A mistake that the user can correct. Its text is one sentence, without the name of the program."""
