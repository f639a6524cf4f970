"""Load pretrained vision models of transformers or timm by name or folder, as safetensors only."""

import importlib.util
import inspect
import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load_file  # pyright: ignore
from torch import Tensor, nn

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""Mean and standard deviation that most models expect, where a folder says nothing."""

_WEIGHTS = "model.safetensors"
_FILES = ("config.json", "preprocessor_config.json", "*.safetensors", "*.safetensors.index.json")
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


class BackboneError(ValueError):
    """A backbone is missing, cannot be used, or is not the one that a model was trained with."""


class Backbone(NamedTuple):
    """A vision model, and how images are prepared for it."""

    model: nn.Module
    call: Callable[[nn.Module, Tensor], Any]
    """From the model and normalised images ``(batch, 3, H, W)`` to tokens, or to a grid of
    features. A function of a module, so that a copy of this calls the copy of the model."""
    resolution: tuple[int, int] | None
    """Height and width that it was trained with, if that is known."""
    patch_size: tuple[int, int] | None
    """Height and width of a patch, if it has patches."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    channels_last: bool = False
    """Whether a grid of features is ``(batch, rows, columns, dim)``."""


def load_backbone(name: str | Path) -> Backbone:
    """Load a model from a folder, or by its name on the Hugging Face hub or in timm.

    A folder that exists is read and nothing is fetched. Any other name is fetched from the hub, or
    taken from its cache: ``facebook/dinov2-small`` is a model of transformers,
    ``vit_small_patch14_dinov2`` and ``timm/vit_small_patch14_dinov2.lvd142m`` are models of timm.

    Raises:
        BackboneError: If there is no such model, it takes no images, its weights are not
            safetensors, or the package that it needs is not installed.
    """
    folder = Path(name)
    if not folder.is_dir():
        folder = _fetched(str(name))
    config = _read(folder / "config.json")
    if config is None:
        raise BackboneError(
            f"{folder} has no config.json, expected the folder of a model of transformers or timm."
        )
    if not any(folder.glob("*.safetensors")):
        pickles = sorted(p.name for kind in _PICKLES for p in folder.glob(kind))
        found = f"{pickles[0]}, a pickle, which can run code" if pickles else "no weights"
        raise BackboneError(
            f"{folder} has {found}; expected {_WEIGHTS}. Convert the weights with "
            "model.save_pretrained(FOLDER, safe_serialization=True)."
        )
    if "architecture" in config:
        return _from_timm(folder, config)
    if "model_type" in config:
        return _from_transformers(folder, config)
    raise BackboneError(
        f"{folder / 'config.json'} has neither a model_type (transformers) nor an architecture "
        "(timm), expected one of them. Save the model with save_pretrained."
    )


def wrap_module(module: nn.Module) -> Backbone:
    """Wrap a module of the caller; one with class tokens has a ``patch_size``, as in timm."""
    places = (module, getattr(module, "patch_embed", None), getattr(module, "config", None))
    sizes = [_pair(getattr(place, "patch_size", None)) for place in places]
    size = next((one for one in sizes if one is not None), None)
    return Backbone(module, _call_module, None, size, (0.0,) * 3, (1.0,) * 3)


def _call_module(module: Any, pixels: Tensor) -> Any:
    out: Any = module(pixels)
    return getattr(out, "last_hidden_state", out)


# ---- names ----


def _fetched(name: str) -> Path:
    """The folder of a model on the hub, fetched unless it is in the cache."""
    from huggingface_hub import snapshot_download  # pyright: ignore

    if Path(name).exists():
        raise BackboneError(f"{name} is a file, expected a folder or the name of a model.")
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise BackboneError(
            f"{name} does not exist, expected the folder of a model, or a name such as "
            "facebook/dinov2-small."
        )
    known = name if "/" in name else _name_on_hub(name)
    try:
        return Path(snapshot_download(known, allow_patterns=list(_FILES)))
    except Exception as error:  # raised by httpx, the hub or the system
        said = str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
        raise BackboneError(
            f"{name} is not a local folder, and fetching {known} from the Hugging Face hub failed "
            f"({said}). Check the name and the connection, or pass a folder with config.json and "
            f"{_WEIGHTS}."
        ) from error


def _name_on_hub(name: str) -> str:
    """Where timm keeps the weights of a model."""
    timm = _package("timm", name)
    try:
        about = timm.get_pretrained_cfg(name)
    except (RuntimeError, ValueError, KeyError):
        about = None
    place = getattr(about, "hf_hub_id", None)
    if not place:
        raise BackboneError(
            f"{name} is not a local folder, and timm has no weights of this name; expected a "
            "folder, a name in timm.list_pretrained(), or one on the Hugging Face hub such as "
            "facebook/dinov2-small."
        )
    return f"{place}{name}" if place.endswith("/") else str(place)


def _package(package: str, name: str | Path) -> Any:
    if importlib.util.find_spec(package) is None:
        raise BackboneError(
            f"{name} can only be loaded with {package}, which is not installed. Install it with "
            f"pip install {package}, or pass another folder or name such as facebook/dinov2-small."
        )
    return importlib.import_module(package)


# ---- transformers ----


def _from_transformers(folder: Path, config: dict[str, Any]) -> Backbone:
    transformers = _package("transformers", folder)
    with _quiet(transformers):
        try:
            model, found = transformers.AutoModel.from_pretrained(
                folder, local_files_only=True, use_safetensors=True, output_loading_info=True
            )
        except (OSError, ValueError, KeyError, RuntimeError, SafetensorError, TypeError) as error:
            said = str(error).strip().partition("\n")[0]
            raise BackboneError(f"{folder} cannot be loaded by transformers: {said}") from error
    # For a model of images and text, use the part for images.
    model = getattr(model, "vision_model", model)
    if getattr(model, "main_input_name", "") != "pixel_values":
        raise BackboneError(
            f"{folder} is a model of type {config['model_type']}, which takes "
            f"{getattr(model, 'main_input_name', 'no images')}; expected one that takes images, "
            "such as facebook/dinov2-small."
        )
    # The pooler is not used here, and its weights are often missing, hence random.
    lacking = sorted(key for key in found["missing_keys"] if "pooler." not in key)
    lacking += sorted(str(key) for key in found["mismatched_keys"])
    if lacking:
        raise BackboneError(
            f"{folder} has no weights for {lacking[0]}, expected all of a "
            f"{type(model).__name__}. Save the model again."
        )
    if getattr(model, "pooler", None) is not None:
        model.pooler = None
    resizes = "interpolate_pos_encoding" in inspect.signature(model.forward).parameters
    about = _read(folder / "preprocessor_config.json") or {}
    size = _size_of(about) or _pair(getattr(model.config, "image_size", None))
    return Backbone(
        model,
        _call_resizing if resizes else _call_transformers,
        size,
        _pair(getattr(model.config, "patch_size", None)),
        _three(about.get("image_mean"), IMAGENET[0]),
        _three(about.get("image_std"), IMAGENET[1]),
    )


def _call_transformers(model: Any, pixels: Tensor) -> Any:
    return model(pixel_values=pixels).last_hidden_state


def _call_resizing(model: Any, pixels: Tensor) -> Any:
    return model(pixel_values=pixels, interpolate_pos_encoding=True).last_hidden_state


def _size_of(about: dict[str, Any]) -> tuple[int, int] | None:
    """The size of an image after resizing and cropping."""
    for name, used in (("crop_size", "do_center_crop"), ("size", "do_resize")):
        value: Any = about.get(name)
        if value is None or not about.get(used, True):
            continue
        if isinstance(value, dict):
            sides: dict[str, Any] = value  # pyright: ignore[reportUnknownVariableType]
            value = sides.get("shortest_edge", (sides.get("height"), sides.get("width")))
        found = _pair(value)
        if found is not None:
            return found
    return None


@contextmanager
def _quiet(transformers: Any) -> Generator[None]:
    """Silence bars and hints of other libraries: what matters is an error of ours."""
    logging = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


# ---- timm ----


def _from_timm(folder: Path, config: dict[str, Any]) -> Backbone:
    timm = _package("timm", folder)
    name = config["architecture"]
    options = dict(config.get("model_args") or {}) | {"num_classes": 0}
    try:
        try:
            # Any size of image; not every architecture can do that.
            model = timm.create_model(name, pretrained=False, dynamic_img_size=True, **options)
        except TypeError:
            model = timm.create_model(name, pretrained=False, **options)
    except (RuntimeError, TypeError) as error:
        said = " ".join(str(error).split())
        raise BackboneError(f"{folder}: timm cannot make its architecture {name!r}: {said}") from (
            error
        )
    if not hasattr(model, "forward_features"):
        raise BackboneError(f"{folder}: {name} has no forward_features, expected a vision model.")
    files = sorted(folder.glob("*.safetensors"))
    file = folder / _WEIGHTS if folder / _WEIGHTS in files else files[0]
    try:
        weights = load_file(file)
        known = model.state_dict()
        # The classifier, which is left out.
        weights = {k: v for k, v in weights.items() if k in known or not k.startswith("head")}
        model.load_state_dict(weights)
    except (RuntimeError, OSError, SafetensorError) as error:
        said = " ".join(str(error).split())
        raise BackboneError(f"{file} does not fit timm's {name}: {said}") from error
    about = config.get("pretrained_cfg") or config
    embed = getattr(model, "patch_embed", None)
    return Backbone(
        model,
        _call_timm,
        _pair(about.get("input_size", (None,))[1:]),
        _pair(getattr(embed, "patch_size", None)) if hasattr(model, "num_prefix_tokens") else None,
        _three(about.get("mean"), IMAGENET[0]),
        _three(about.get("std"), IMAGENET[1]),
        channels_last=getattr(model, "output_fmt", "NCHW") == "NHWC",
    )


def _call_timm(model: Any, pixels: Tensor) -> Any:
    return model.forward_features(pixels)


# ---- small things ----


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise BackboneError(f"{path} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise BackboneError(f"{path} holds no settings of a model, expected a JSON object.")
    return found  # pyright: ignore[reportUnknownVariableType]


def _pair(value: Any) -> tuple[int, int] | None:
    """Height and width; JSON and configurations have one number, or two."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value, value
    parts: list[Any] = list(value) if isinstance(value, list | tuple) else []  # pyright: ignore
    if len(parts) != 2 or not all(isinstance(one, int) for one in parts):
        return None
    return parts[0], parts[1]


def _three(value: Any, otherwise: tuple[float, ...]) -> tuple[float, ...]:
    if isinstance(value, list | tuple) and len(value) == 3:  # pyright: ignore
        return tuple(float(one) for one in value)  # pyright: ignore
    return otherwise
