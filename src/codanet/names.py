"""What to say when a name is unknown."""

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: object, known: Iterable[str]) -> str:
    """': did you mean 's_coda'?' and the list of what there is."""
    known = list(known)
    plain = {each.lower().replace("-", "_"): each for each in known}
    close = get_close_matches(str(name).lower().replace("-", "_"), plain, n=1, cutoff=0.5)
    guess = f": did you mean {plain[close[0]]!r}?" if close else ":"
    return f"{guess} choose one of {', '.join(known)}"
