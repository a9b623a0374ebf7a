"""Names with settings as they are written on a command line: `rise:masks=2000:cells=4`."""


def split_spec(text: str) -> tuple[str, dict[str, str]]:
    """The name, and the settings as they were written."""
    name, *changes = text.split(":")
    settings = {}
    for change in changes:
        key, sign, value = change.partition("=")
        if not sign:
            raise ValueError(f"{change!r} in {text!r} is not a setting: write it as {name}:name=value")
        settings[key] = value
    return name, settings
