"""Saving and loading modules as safetensors and JSON; never a pickle."""

import inspect
from pathlib import Path
from typing import Any, Self

from huggingface_hub import ModelCard, PyTorchModelHubMixin
from safetensors import SafetensorError
from safetensors.torch import load_model  # pyright: ignore
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
"""What a page about weights begins with."""


class Pretrained(PyTorchModelHubMixin):
    """``save_pretrained`` and ``from_pretrained``, strict about what they load."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        # The mixin forgets how a parent class writes its parts to JSON.
        kwargs.setdefault("coders", getattr(cls, "_hub_mixin_coders", None))
        super().__init_subclass__(**kwargs)  # pyright: ignore[reportUnknownMemberType]
        # The mixin's __new__(*args, **kwargs) would hide the arguments from help().
        signature = inspect.signature(cls.__init__)
        cls.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])

    def generate_model_card(self, *args: Any, **kwargs: Any) -> ModelCard:
        """What ``save_pretrained`` writes beside weights: what they are, and how to load them."""
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
        """Load what ``save_pretrained`` wrote, in evaluation mode.

        Args:
            pretrained_model_name_or_path: A folder, or the name of a model on the Hugging Face hub.
            kwargs: Constructor arguments that replace the saved ones; ``map_location``;
                ``strict=False`` to load only the weights that fit; and arguments of
                ``PyTorchModelHubMixin.from_pretrained``.

        Raises:
            ValueError: If a file is missing, damaged or does not match; the message names it.
        """
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
            raise ValueError(
                f"from_pretrained: {folder / 'config.json'} does not describe a {cls.__name__} "
                f"({error}). Save the model again, or fix config.json."
            ) from error

    def _save_pretrained(self, save_directory: Path) -> None:
        super()._save_pretrained(save_directory)  # pyright: ignore[reportUnknownMemberType]
        seal(save_directory / "model.safetensors")

    @classmethod
    def _from_pretrained(  # pyright: ignore[reportIncompatibleMethodOverride]
        cls, *, model_id: str, map_location: str = "cpu", strict: bool = True, **kwargs: Any
    ) -> Self:
        folder = Path(model_id)
        if not folder.is_dir():
            found: Any = super()._from_pretrained(  # pyright: ignore
                model_id=model_id, map_location=map_location, strict=strict, **kwargs
            )
            return found
        for hub_only in ("revision", "cache_dir", "force_download", "local_files_only", "token"):
            kwargs.pop(hub_only, None)
        file = str(folder / "model.safetensors")
        return cls._load_as_safetensor(cls(**kwargs), file, map_location, strict)

    @classmethod
    def _load_as_safetensor(  # pyright: ignore[reportIncompatibleMethodOverride]
        cls, model: Any, model_file: str, map_location: str, strict: bool
    ) -> Any:
        assert isinstance(model, nn.Module)
        try:
            check_seal(Path(model_file))
        except ValueError as error:
            raise _WeightsError(f"from_pretrained: {error} Save or download it again.") from error
        try:
            load_model(model, model_file, strict=strict, device=map_location)
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


class _WeightsError(ValueError):
    """The weights do not match, which may not be the fault of config.json."""
