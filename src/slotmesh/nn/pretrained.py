"""Saving and loading modules as safetensors and JSON; never a pickle."""

import inspect
import os
import warnings
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from huggingface_hub import ModelCard, PyTorchModelHubMixin
from safetensors import SafetensorError
from safetensors.torch import load_file, load_model, save_model  # pyright: ignore
from torch import nn

from slotmesh.nn.backbones import BackboneError
from slotmesh.nn.sealed import check_seal, seal

CARD_HEAD = """---
library_name: slotmesh
license: mit
tags:
- object-centric-learning
- slot-attention
- optimal-transport
---
"""
"""Metadata at the top of a model card."""

_HUB = ("revision", "cache_dir", "force_download", "local_files_only", "token")
_LOADING = ("map_location", "strict", *_HUB)


class Pretrained(PyTorchModelHubMixin):
    """``save_pretrained`` and ``from_pretrained``, strict about what they load."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        # The mixin forgets how a parent class writes its parts to JSON.
        coders: dict[Any, Any] = (
            kwargs.get("coders") or getattr(cls, "_hub_mixin_coders", None) or {}
        )
        # It omits values that are not JSON, such as NumPy numbers.
        kwargs["coders"] = {**coders, np.generic: (np.generic.item, _as_it_is)}
        super().__init_subclass__(**kwargs)  # pyright: ignore[reportUnknownMemberType]
        # The mixin's __new__(*args, **kwargs) would hide the arguments from help().
        signature = inspect.signature(cls.__init__)
        cls.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])

    def generate_model_card(self, *args: Any, **kwargs: Any) -> ModelCard:
        """Return the README for ``save_pretrained``: what the weights are, and how to load them."""
        kind = type(self)
        name, room = kind.__name__, ".".join(kind.__module__.split(".")[:2])
        return ModelCard(
            f"{CARD_HEAD}\n# {name}\n\nA `{room}.{name}`, written by `save_pretrained`. "
            f"Load it with `{name}.from_pretrained(FOLDER)`; `config.json` has its settings.\n"
        )

    @classmethod
    def from_pretrained(  # pyright: ignore[reportIncompatibleMethodOverride]
        cls, pretrained_model_name_or_path: str | Path, **kwargs: Any
    ) -> Self:
        """Load what ``save_pretrained`` wrote, in evaluation mode and torch's default dtype.

        Args:
            pretrained_model_name_or_path: A folder, or the name of a model on the Hugging Face hub.
            kwargs: Constructor arguments that replace the saved ones; ``map_location``;
                ``strict=False`` to load only the weights that fit, with a warning that names the
                others; and arguments of ``PyTorchModelHubMixin.from_pretrained``.

        Raises:
            ValueError: If a file is missing, damaged or does not match, or there is no such
                argument; the message names it.
        """
        cls._check_names(kwargs)
        load: Any = super().from_pretrained  # pyright: ignore
        folder = Path(pretrained_model_name_or_path)
        if not folder.is_dir():
            return load(pretrained_model_name_or_path, **kwargs)
        for name in ("config.json", "model.safetensors"):
            if not (folder / name).is_file():
                raise ValueError(
                    f"from_pretrained: {folder} has no {name}, expected a folder written by "
                    "save_pretrained."
                )
        try:
            return load(folder, **kwargs)
        except (_WeightsError, BackboneError):
            raise
        except (AttributeError, TypeError, ValueError) as error:
            own = [name for name in kwargs if name not in _LOADING]
            given = f" with {', '.join(own)} as given" if own else ""
            raise ValueError(
                f"from_pretrained: {folder / 'config.json'}{given} does not describe a "
                f"{cls.__name__} ({error}). Save the model again, or fix config.json."
            ) from error

    @classmethod
    def _check_names(cls, kwargs: dict[str, Any]) -> None:
        own = list(inspect.signature(cls.__init__).parameters.values())[1:]
        if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in own):
            return
        names = [one.name for one in own]
        unknown = [name for name in kwargs if name not in (*names, *_LOADING)]
        if unknown:
            raise ValueError(
                f"from_pretrained: got {unknown[0]}, expected an argument of {cls.__name__} "
                f"({', '.join(names)}), or of loading ({', '.join(_LOADING)})."
            )

    def live_settings(self) -> dict[str, Any]:
        """Settings that can be changed after construction, as they are now, ready for JSON."""
        return {}

    def note_settings(self) -> None:
        """Remember the settings, to be called at the end of construction."""
        self._noted = self.live_settings()

    def _save_pretrained(self, save_directory: Path) -> None:
        # Only values that changed: a subclass may use the same argument name for something else.
        config: Any = self._hub_mixin_config  # pyright: ignore
        noted: dict[str, Any] = getattr(self, "_noted", {})
        self._noted = self.live_settings()
        for name, value in self._noted.items():
            if name in config and value != noted.get(name):
                config[name] = value
        file = save_directory / "model.safetensors"
        # Weights that are there already stay until these are whole.
        part = file.with_name(f".{file.name}.{os.getpid()}.part")
        module: Any = self
        try:
            save_model(module, str(part))
            seal(part)
            part.replace(file)
        except SafetensorError as error:
            raise OSError(f"{file} could not be written: {error}") from error
        finally:
            part.unlink(missing_ok=True)

    @classmethod
    def _from_pretrained(  # pyright: ignore[reportIncompatibleMethodOverride]
        cls, *, model_id: str, map_location: Any = "cpu", strict: bool = True, **kwargs: Any
    ) -> Self:
        folder = Path(model_id)
        if not folder.is_dir():
            found: Any = super()._from_pretrained(  # pyright: ignore
                model_id=model_id, map_location=map_location, strict=strict, **kwargs
            )
            return found
        for hub_only in _HUB:
            kwargs.pop(hub_only, None)
        file = str(folder / "model.safetensors")
        return cls._load_as_safetensor(cls(**kwargs), file, map_location, strict)

    @classmethod
    def _load_as_safetensor(  # pyright: ignore[reportIncompatibleMethodOverride]
        cls, model: Any, model_file: str, map_location: Any, strict: bool
    ) -> Any:
        assert isinstance(model, nn.Module)
        try:
            check_seal(Path(model_file))
        except ValueError as error:
            raise _WeightsError(f"from_pretrained: {error} Save or download it again.") from error
        try:
            device = str(torch.device(map_location))
        except (RuntimeError, TypeError) as error:
            raise _WeightsError(
                f"from_pretrained: map_location is {map_location!r}, expected a device such as "
                f"'cpu' or 'cuda:0' ({error})."
            ) from error
        try:
            if strict:
                load_model(model, model_file, device=device)
            else:
                _load_what_fits(model, model_file, device)
        except (RuntimeError, SafetensorError) as error:
            raise _WeightsError(
                f"from_pretrained: {model_file} does not fit the {type(model).__name__} that its "
                f"config.json describes ({error}). Save the model again, or fix config.json."
            ) from error
        return model.to(map_location).eval()

    @classmethod
    def _load_as_pickle(cls, model: Any, model_file: str, map_location: str, strict: bool) -> Any:
        raise ValueError(
            f"from_pretrained: found only {Path(model_file).name}, a pickle, which can run code "
            "when it is loaded; expected model.safetensors. Convert it with "
            "safetensors.torch.save_model."
        )


def _as_it_is(value: Any) -> Any:
    return value


def _load_what_fits(model: nn.Module, file: str, device: str) -> None:
    """Load the weights whose names and shapes fit, and name the others in a warning."""
    saved, own = load_file(file, device), model.state_dict()
    fits = {k: v for k, v in saved.items() if k in own and v.shape == own[k].shape}
    model.load_state_dict(fits, strict=False)
    said: list[str] = []
    if left := [name for name in saved if name not in fits]:
        said.append(f"weights that do not fit were left out: {', '.join(sorted(left))}")
    if new := [name for name in own if name not in fits]:
        said.append(f"new weights were not loaded: {', '.join(sorted(new))}")
    if said:
        warnings.warn(f"from_pretrained: of {file}, {'; '.join(said)}.", stacklevel=2)


class _WeightsError(ValueError):
    """The weights do not match, for which config.json may not be to blame."""
