"""The state of a view as the query string of a link that restores it."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self
from urllib.parse import urlencode

VIEWS = ("tie", "objects", "properties")
"""All views, the first by default."""


class _Linked:
    """A frozen dataclass whose fields are ints, floats, strings or tuples of ints."""

    view: str

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> Self:
        """Read a query; missing or damaged values get their defaults."""
        if query.get("view") != cls.view:
            return cls()
        given: dict[str, Any] = {}
        for field in fields(cls):  # pyright: ignore[reportArgumentType]
            text = query.get(field.name)
            if text is None:
                continue
            try:
                given[field.name] = _parse(text, type(field.default))
            except ValueError:
                continue
        return cls(**given)

    def to_query(self) -> str:
        """The query string, without values that have their defaults."""
        changed = {
            field.name: _text(getattr(self, field.name))
            for field in fields(self)  # pyright: ignore[reportArgumentType]
            if getattr(self, field.name) != field.default
        }
        return urlencode({"view": self.view, **changed}, safe=",/")


@dataclass(frozen=True)
class ObjectsState(_Linked):
    """The Objects view.

    Example:
        >>> from slotmesh.app.links import ObjectsState
        >>> ObjectsState(scene=12, off_right=(1, 4)).to_query()
        'view=objects&scene=12&off_right=1,4'
        >>> ObjectsState.from_query({"view": "objects", "scene": "12", "slots": "many"}).scene
        12
    """

    view = "objects"
    world: str = "multi-dsprites"
    scene: int = 6
    left: str = ""
    right: str = ""
    """The models; empty for those that the page starts with."""
    slots: int = 0
    """0 for as many as in training."""
    seed: int = 0
    iteration: int = 99
    """The iteration, from 1; the last if there are fewer."""
    off_left: tuple[int, ...] = ()
    off_right: tuple[int, ...] = ()
    """Slots that are switched off, from 1."""


@dataclass(frozen=True)
class PropertiesState(_Linked):
    """The Properties view."""

    view = "properties"
    scene: int = 0
    model: str = ""
    """The model; empty for the one that the page starts with."""
    confidence: float = 0.5


def _parse(text: str, kind: type) -> Any:
    if kind is tuple:
        return tuple(int(word) for word in text.split(",") if word)
    value = kind(text)
    if kind is float and not -10 < value < 10:
        raise ValueError(text)
    return value


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
