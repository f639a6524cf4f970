"""The models behind the page, and the HTML of its views."""

from collections import OrderedDict
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from jinja2 import Environment, PackageLoader, StrictUndefined

from slotmesh.app.links import ObjectsState, PropertiesState
from slotmesh.app.objects import MOST_SLOTS, Binding, bind, panel
from slotmesh.app.pictures import MOST_SCENE, WORLDS, ShownImage, as_image, data_uri, world_scene
from slotmesh.app.properties import draw_boxes, missed, name_objects
from slotmesh.models import ObjectDiscovery, PropertyPredictor
from slotmesh.palette import object_colour
from slotmesh.report.sheet import colour_mask
from slotmesh.training.runs import open_run
from slotmesh.training.weights import find, locate, names

MOST_SEED = 2**31
_REMEMBERED = 64
_ENVIRONMENT = Environment(
    loader=PackageLoader("slotmesh.app", "web"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


@dataclass(frozen=True)
class _Loaded:
    model: Any
    crop: bool
    """Whether images were cropped in training rather than squeezed."""


class Explorer:
    """Models by name, each loaded when it is first needed, and their results.

    Args:
        model: A run, a checkpoint, an export or the name of weights, in addition to those that come
            with slotmesh; None for only the latter.
        device: Where to compute.

    Raises:
        ValueError: If it predicts neither objects nor properties in images.
    """

    def __init__(self, model: str | None = None, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self._lock = Lock()
        self._loaded: dict[str, _Loaded] = {}
        self._seen: OrderedDict[Any, Binding] = OrderedDict()
        self._paths: dict[str, Path] = {name: find(name) for name in names()}
        images = ("clevrtex", "multi-dsprites")
        self.discovery = [name for name in self._paths if name.startswith(images)]
        self.predictors = [name for name in self._paths if name.startswith("clevr-properties")]
        if model is not None:
            self._add(model)

    def _add(self, model: str) -> None:
        path = locate(model)
        name = path.resolve().name if model in (".", "..") else model.rstrip("/")
        self._paths[name] = path
        found = self._load(name).model
        if isinstance(found, ObjectDiscovery):
            self.discovery = [*(other for other in self.discovery if other != name), name]
        elif isinstance(found, PropertyPredictor):
            self.predictors = [*(other for other in self.predictors if other != name), name]
        else:
            raise ValueError(
                f"{model} is a {type(found).__name__}, expected a model that finds objects in "
                "images, such as one from `slotmesh train images`, or one from `slotmesh train "
                "clevr-properties`."
            )

    def _load(self, name: str) -> _Loaded:
        with self._lock:
            if name not in self._loaded:
                run = open_run(self._paths[name])
                crop = getattr(run.settings.data, "square", "squeeze") == "crop"
                self._loaded[name] = _Loaded(run.load_model(self.device), crop)
            return self._loaded[name]

    def settle_objects(self, state: ObjectsState) -> ObjectsState:
        """The same state with everything filled in, and within its limits."""
        # The last is SA-MESH, or the model that was passed.
        left, right = (self.discovery[-2:] * 2)[:2] if self.discovery else ("", "")
        left = state.left if state.left in self.discovery else left
        right = state.right if state.right in self.discovery else right
        slots = min(max(state.slots, 0), MOST_SLOTS)
        if slots == 0 and right:
            slots = min(self._load(right).model.attention.n_slots, MOST_SLOTS)
        return replace(
            state,
            world=state.world if state.world in WORLDS else WORLDS[0],
            scene=min(max(state.scene, 0), MOST_SCENE),
            left=left,
            right=right,
            slots=slots,
            seed=min(max(state.seed, 0), MOST_SEED),
            iteration=min(max(state.iteration, 1), self.n_iters(left, right)),
            off_left=_within(state.off_left, slots),
            off_right=_within(state.off_right, slots),
        )

    def n_iters(self, *models: str) -> int:
        """The largest number of iterations of these models."""
        return max((self._load(name).model.attention.n_iters for name in models if name), default=1)

    def bind(self, name: str, shown: ShownImage, n_slots: int, seed: int) -> Binding:
        """The objects that a model found in an image, computed once."""
        key = (name, shown.key, n_slots, seed)
        with self._lock:
            if key in self._seen:
                self._seen.move_to_end(key)
                return self._seen[key]
        one = self._load(name)
        found = bind(one.model, shown, n_slots=n_slots, seed=seed, crop=one.crop)
        with self._lock:
            self._seen[key] = found
            while len(self._seen) > _REMEMBERED:
                self._seen.popitem(last=False)
        return found

    def objects(self, state: ObjectsState, upload: ShownImage | None = None) -> str:
        """The HTML of the Objects view: of a scene, or of an upload.

        Args:
            state: What to show.
            upload: An image that takes the place of the scene.

        Raises:
            ValueError: If a model cannot be used in this way; says why.
        """
        state = self.settle_objects(state)
        if not self.discovery:
            raise ValueError("There are no weights here: pass a model, slotmesh explore MODEL.")
        shown = world_scene(state.world, state.scene) if upload is None else upload
        panels = []
        for name, off in ((state.left, state.off_left), (state.right, state.off_right)):
            found = self.bind(name, shown, state.slots, state.seed)
            trained = self._load(name).model.attention.n_slots
            hidden = frozenset(slot - 1 for slot in off)
            panels.append(
                panel(name, found, iteration=state.iteration, off=hidden, trained=trained)
            )
        truth = None
        if shown.truth is not None:
            truth = torch.from_numpy(colour_mask(shown.truth)).movedim(-1, 0)
        return _ENVIRONMENT.get_template("objects.html").render(
            query=state.to_query(),
            shown=shown,
            image=data_uri(as_image(_shrunk(shown.pixels))),
            truth=None if truth is None else data_uri(as_image(truth)),
            panels=panels,
        )

    def settle_properties(self, state: PropertiesState) -> PropertiesState:
        """The same state with everything filled in, and within its limits."""
        first = self.predictors[-1] if self.predictors else ""
        return replace(
            state,
            scene=min(max(state.scene, 0), MOST_SCENE),
            model=state.model if state.model in self.predictors else first,
            confidence=min(max(state.confidence, 0.05), 0.95),
        )

    def properties(self, state: PropertiesState, upload: ShownImage | None = None) -> str:
        """The HTML of the Properties view; as for :meth:`objects`."""
        state = self.settle_properties(state)
        if not self.predictors:
            raise ValueError(
                "There are no weights of clevr-properties here: pass a model, slotmesh explore "
                "MODEL."
            )
        one = self._load(state.model)
        shown = world_scene("clevr", state.scene) if upload is None else upload
        found = name_objects(one.model, shown, confidence=state.confidence)
        # Scenes are the same at every size.
        large = world_scene("clevr", state.scene, 320) if upload is None else upload
        return _ENVIRONMENT.get_template("properties.html").render(
            query=state.to_query(),
            model=state.model,
            shown=shown,
            picture=data_uri(draw_boxes(_shrunk(large.pixels), found)),
            found=found,
            missed=missed(shown, found),
            object_colour=object_colour,
        )


def _within(off: tuple[int, ...], slots: int) -> tuple[int, ...]:
    return tuple(sorted({slot for slot in off if 1 <= slot <= slots}))


def _shrunk(pixels: torch.Tensor, most: int = 960) -> torch.Tensor:
    """Shrink an image to at most this width and height."""
    height, width = pixels.shape[-2:]
    step = -(-max(height, width) // most)
    return pixels[:, ::step, ::step]
