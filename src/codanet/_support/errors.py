"""What data loading raises: one sentence saying what was given, what is allowed and what to do."""


class DataError(ValueError):
    """Files, folders or settings that cannot be used as data."""


class DoesNotFit(ValueError):
    """A metric or a method cannot be used on this model; an evaluation leaves it out and says so."""


class NetworkError(DataError):
    """An address, or the npm client, that could not be reached."""
