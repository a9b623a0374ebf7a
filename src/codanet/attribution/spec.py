"""A method as it is written on a command line and in a table: `rise`, or `rise:masks=2000:cells=4`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from codanet._support.specs import split_spec
from codanet._support.typed import field_types, typed

from .registry import METHODS, Method, settings_of
from .task import MethodSettings


@dataclass(frozen=True)
class MethodSpec:
    """A method of the registry with its settings, some of them changed; parsed here and nowhere else."""

    name: str  # as it was written
    method: Method
    settings: MethodSettings

    @classmethod
    def parse(cls, name: str) -> MethodSpec:
        """A ValueError if the name stands for nothing."""
        plain, changes = split_spec(name)
        settings: Any = settings_of(plain)
        known = {field.name for field in fields(settings)}  # and none of its class's attributes
        types = {key: kinds for key, kinds in field_types(type(settings)).items() if key in known}
        values: dict[str, Any] = {}
        for key, value in changes.items():
            values[key] = typed(key, None if value == "null" else value, types[key]) if key in types else value
        return cls(name, METHODS[plain], settings_of(plain, values))

    @classmethod
    def find(cls, name: str) -> MethodSpec | None:
        """The same of a name or a title ("RISE"); None for what is not in the registry, a function of one's own."""
        plain, colon, changes = name.partition(":")
        known = next((key for key, method in METHODS.items() if plain in (key, method.title)), plain)
        try:
            return cls.parse(known + colon + changes)
        except ValueError:
            return None

    @property
    def title(self) -> str:
        """As figures and tables call it, the settings that were changed kept: 'Occ9:stride=4'."""
        return self.method.title + self.name[len(self.method.name) :]

    @property
    def signed(self) -> bool:
        return self.settings.signed


def method_title(name: str) -> str:
    """The title of a method of the registry; a function of one's own is called what its user calls it."""
    spec = MethodSpec.find(name)
    return spec.title if spec else name


def has_sign(name: str) -> bool:
    """Whether the maps of a method, by its name or title, have positive and negative values; unknown ones do."""
    spec = MethodSpec.find(name)
    return spec is None or spec.signed
