"""Parts: modules that a user passes to another module, which determines their sizes.

In ``SlotAttention(64, 64, 7, transport=Mesh(n_steps=4))``, ``Mesh`` does not have to repeat the
sizes. A part keeps its settings, can be written to JSON and read back, and makes its parameters
when it is bound.
"""

import inspect
from typing import Any, ClassVar

from torch import nn

from slotmesh.ops import checks


class Part(nn.Module):
    """A module with settings, bound to its sizes once, by the module that owns it.

    A subclass stores every constructor argument under the argument's name and makes its parameters
    in ``build``, which ``bind`` calls with the sizes.
    """

    kinds: ClassVar[dict[str, type["Part"]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        Part.kinds[cls.kind()] = cls

    @classmethod
    def kind(cls) -> str:
        """The name in a configuration; classes of other packages have a qualified one."""
        ours = cls.__module__.startswith("slotmesh.")
        return cls.__name__ if ours else f"{cls.__module__}.{cls.__qualname__}"

    def __init__(self) -> None:
        super().__init__()
        self.bound = False

    def claim(self) -> None:
        """Become part of a module; ``bind`` calls this first, as a part has one owner."""
        if self.bound:
            raise ValueError(
                f"{type(self).__name__}: this object is already part of a module, expected a new "
                "one. Make one per module, or copy.deepcopy it before its first use."
            )
        self.bound = True

    def unbound(self) -> ValueError:
        """The error for a part that is used before it has parameters."""
        return ValueError(
            f"{type(self).__name__}: it has no weights yet, expected to be part of a module. "
            "Pass it to SlotAttention or another module that takes it, or call bind(...) first."
        )

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments."""
        names = list(inspect.signature(type(self).__init__).parameters)[1:]
        return {name: getattr(self, name) for name in names}

    def to_config(self) -> dict[str, Any]:
        """Kind and settings, ready for JSON."""
        values = self.settings().items()
        plain = {k: v.to_config() if isinstance(v, Part) else checks.plain(v) for k, v in values}
        return {"kind": self.kind(), **plain}

    @staticmethod
    def from_config(config: dict[str, Any]) -> "Part":
        """Make the part that :meth:`to_config` described, not yet bound."""
        say = "a dictionary with the kind of a part and its settings"
        checks.check_instance("from_config", "config", config, dict, say)
        settings = dict(config)
        kind = settings.pop("kind", None)
        if not isinstance(kind, str) or kind not in Part.kinds:
            raise ValueError(
                f"the configuration names a part of kind {kind!r}, expected one of "
                f"{', '.join(sorted(Part.kinds))}. Import the module that defines it first."
            )
        for name, value in settings.items():
            if isinstance(value, dict) and "kind" in value:
                settings[name] = Part.from_config(value)  # pyright: ignore
        made = Part.kinds[kind]
        return made(**made.upgraded(settings))

    @classmethod
    def upgraded(cls, settings: dict[str, Any]) -> dict[str, Any]:
        """Settings of a saved part as the constructor takes them now; override for renamed ones."""
        return settings

    def extra_repr(self) -> str:
        """Settings that are not modules themselves."""
        shown = {k: v for k, v in self.settings().items() if not isinstance(v, nn.Module)}
        return ", ".join(f"{k}={v!r}" for k, v in shown.items())
