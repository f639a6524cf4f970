"""Saving and loading modules as safetensors and JSON; never a pickle."""

import inspect
from pathlib import Path
from typing import Any, Self

from huggingface_hub import PyTorchModelHubMixin
from safetensors import SafetensorError
from safetensors.torch import load_model  # pyright: ignore
from torch import nn


class Pretrained(PyTorchModelHubMixin):
    """``save_pretrained`` and ``from_pretrained``, strict about what they load."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)  # pyright: ignore[reportUnknownMemberType]
        # The mixin's __new__(*args, **kwargs) would hide the arguments from help().
        signature = inspect.signature(cls.__init__)
        cls.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])

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
        for name in ("config.json", "model.safetensors"):
            if not (folder / name).is_file():
                raise ValueError(
                    f"from_pretrained: {folder} has no {name}, expected a folder written by "
                    "save_pretrained."
                )
        file = str(folder / "model.safetensors")
        return cls._load_as_safetensor(cls(**kwargs), file, map_location, strict)

    @classmethod
    def _load_as_safetensor(  # pyright: ignore[reportIncompatibleMethodOverride]
        cls, model: Any, model_file: str, map_location: str, strict: bool
    ) -> Any:
        assert isinstance(model, nn.Module)
        try:
            load_model(model, model_file, strict=strict, device=map_location)
        except (RuntimeError, SafetensorError) as error:
            raise ValueError(
                f"from_pretrained: {model_file} does not fit the {type(model).__name__} that its "
                f"config.json describes ({error}). Save the model again, or mend config.json."
            ) from error
        return model.to(map_location).eval()

    @classmethod
    def _load_as_pickle(cls, model: Any, model_file: str, map_location: str, strict: bool) -> Any:
        raise ValueError(
            f"from_pretrained: found only {Path(model_file).name}, a pickle, which can run code "
            "when it is loaded; expected model.safetensors. Convert it with "
            "safetensors.torch.save_model."
        )
