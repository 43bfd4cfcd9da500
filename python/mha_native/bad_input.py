"""The error of the command line."""


class BadInput(Exception):
    """What the user can mend: one sentence, without the name of the program."""
