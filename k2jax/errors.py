"""The one exception that means "the user can mend this": commands print it as one line and exit with code 2."""


class UserError(Exception):
    """A user's mistake, worded in one line that says what is wrong and how to mend it.

    Raise it for missing files, bad config values, shapes that do not divide, checkpoints of another model and
    corrupt inputs. Anything else that escapes is a bug and keeps its traceback.
    """
