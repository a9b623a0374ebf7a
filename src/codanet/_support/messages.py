"""Words for what a user reads: an unknown name, a span of time."""

from collections.abc import Iterable
from difflib import get_close_matches


def spelled(name: str, known: Iterable[str]) -> str | None:
    """The known name that is meant, whatever its hyphens, underscores and capitals; None if there is none."""
    plain = name.lower().replace("-", "").replace("_", "")
    return next((each for each in known if each.replace("-", "") == plain), None)


def nearest(name: object, known: Iterable[str]) -> str:
    """': did you mean 's_coda'?' and the list of what there is."""
    known = list(known)
    plain = {each.lower().replace("-", "_"): each for each in known}
    close = get_close_matches(str(name).lower().replace("-", "_"), plain, n=1, cutoff=0.5)
    guess = f": did you mean {plain[close[0]]!r}?" if close else ":"
    return f"{guess} choose one of {', '.join(known)}"


def plain(words: object) -> str:
    """For a terminal: what would steer it (escape sequences in the name of a file or a class) as visible signs."""
    return "".join(
        sign if sign.isprintable() or sign in "\n\t" else sign.encode("unicode_escape", "replace").decode()
        for sign in str(words)
    )


def encodable(words: object) -> str:
    """For a file in UTF-8: what it cannot hold, such as bytes of a name that are none of it, as visible signs."""
    return str(words).encode("utf-8", "backslashreplace").decode("utf-8")


def duration(seconds: float) -> str:
    """1 h 20 min, 6 min 5 s, 12 s."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def reason(error: BaseException) -> str:
    """The first line of an error's own words, without a final stop."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(text).splitlines()[0].rstrip(".")
