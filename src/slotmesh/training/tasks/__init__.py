"""The tasks by their names on the command line: one class and one line of :data:`TASKS` each.

The command line, presets and reports read that table. :func:`register_task` adds to it from outside
the package.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from slotmesh.training.settings import Settings, rebuild
from slotmesh.training.tasks.clevr_properties import ClevrProperties
from slotmesh.training.tasks.discovery import ClevrTexDiscovery, MultiDSpritesDiscovery
from slotmesh.training.tasks.experiment import Experiment
from slotmesh.training.tasks.features import Features
from slotmesh.training.tasks.images import Images
from slotmesh.training.tasks.random_objects import RandomObjectsTask
from slotmesh.training.tasks.video_discovery import ClevrerLongDiscovery, ClevrerShortDiscovery
from slotmesh.training.tasks.videos import Videos
from slotmesh.training.variants import VARIANTS

TASKS: dict[str, type[Experiment]] = {
    task.name: task
    for task in (
        RandomObjectsTask,
        ClevrProperties,
        MultiDSpritesDiscovery,
        ClevrTexDiscovery,
        ClevrerShortDiscovery,
        ClevrerLongDiscovery,
        Images,
        Videos,
        Features,
    )
}
"""All tasks."""


def register_task(task: type[Experiment]) -> None:
    """Register a task for the command line, as ``slotmesh train NAME``.

    Raises:
        ValueError: If the name is taken.
    """
    if task.name in TASKS:
        raise ValueError(f"A task named {task.name!r} already exists. Choose another name.")
    TASKS[task.name] = task


def preset(
    task: str,
    variant: str = "SA-MESH",
    preset: str = "quick",
    *,
    root: Path | None = None,
    size: int | None = None,
    masks: Path | None = None,
) -> Settings:
    """The settings that a run of a task starts from.

    Args:
        task: Its name.
        variant: Which slot attention.
        preset: ``quick`` or ``paper``.
        root: The data, for tasks whose defaults depend on it.
        size: Size of the images, for such tasks; by default, the task chooses it.
        masks: Folder of the masks, for such tasks; ``root/masks`` by default, if it exists.

    Raises:
        ValueError: If there is no such task, variant or preset.

    Example:
        >>> from slotmesh.training.tasks import preset
        >>> preset("multi-dsprites", "SA-MESH", "paper").steps
        496610
    """
    kind = _kind(task)
    _check_variant(kind, task, variant)
    if preset not in ("quick", "paper"):
        raise ValueError(f"--preset is {preset!r}, expected quick or paper.")
    start = kind.preset(variant, preset)
    return start if root is None else kind.suited(start, root, size, masks)


def experiment(settings: Settings, *, moved: bool = False) -> Experiment:
    """The experiment with these settings, which are checked first.

    Args:
        settings: Settings of a run.
        moved: Whether the run may come from another machine, so that its dataset may be missing
            here.
    """
    kind = _kind(settings.task)
    _check_variant(kind, settings.task, settings.variant)
    expected = VARIANTS[settings.variant].transport
    if type(settings.transport) is not expected:
        raise ValueError(
            f"--variant is {settings.variant}, but its transport settings are "
            f"{type(settings.transport).__name__}, expected {expected.__name__}. Start from "
            f"preset({settings.task!r}, {settings.variant!r})."
        )
    if moved and getattr(settings.data, "root", None) is not None:
        elsewhere = {name: None for name in ("root", "masks") if hasattr(settings.data, name)}
        replace(settings, data=replace(settings.data, **elsewhere)).check()
    else:
        settings.check()
    made = kind(settings)
    if not moved:
        made.check_data()
    return made


def from_plain(values: dict[str, Any], where: str) -> Settings:
    """Convert the JSON of a run to its settings."""
    try:
        start = preset(values["task"], values["variant"], values["preset"])
        for name in ("transport", "transition"):
            if name in values:
                kind = type(getattr(start, name))
                values = values | {name: rebuild(kind, values[name], where)}
        return rebuild(type(start), values, where)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{where} does not hold the settings of a run: {error!r}.") from error


def _kind(task: str) -> type[Experiment]:
    if task not in TASKS:
        raise ValueError(
            f"There is no task {task!r}, expected one of {', '.join(TASKS)}, or one that your own "
            "script registers: run that script in place of slotmesh."
        )
    return TASKS[task]


def _check_variant(kind: type[Experiment], task: str, variant: str) -> None:
    if variant not in kind.variants():
        known = ", ".join(kind.variants())
        raise ValueError(f"--variant is {variant!r}, expected one of {known} for {task}.")
