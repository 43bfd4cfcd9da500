"""The error that the command line reports without a traceback."""


class UserError(Exception):
    """A mistake that the user can correct, in one sentence."""
