"""The one error a person sees: a sentence that says what was wrong and what would be right."""


class QkvError(Exception):
    """Bad input or a broken file. The command line prints it on one line and exits with code 2."""
