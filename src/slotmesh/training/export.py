"""``slotmesh export``: the trained model of a run, for ``from_pretrained``."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.markup import escape

from slotmesh.files import make_folder, write_whole
from slotmesh.training.card import model_card
from slotmesh.training.runs import open_run
from slotmesh.training.settings import Settings, plain


@dataclass(frozen=True)
class ExportModel:
    """Export a trained model as safetensors and JSON, for from_pretrained."""

    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """Folder of a run, or a checkpoint."""
    out: Path
    """Folder to write to: a new or empty one, or an earlier export."""
    overwrite: bool = False
    """Write even if the folder contains other files, and replace those of the same names."""


def run_export_model(settings: ExportModel, console: Console | None = None) -> Path:
    """Write model.safetensors, config.json, the settings of the run, and a README."""
    console = Console() if console is None else console
    run = open_run(settings.run)
    model: Any = run.load_model()
    if (settings.out / "checkpoints").is_dir():
        raise ValueError(f"--out is {settings.out}, which is the folder of a run; choose another.")
    if not settings.overwrite and _holds_others(settings.out):
        raise ValueError(
            f"--out is {settings.out}, which holds other files; expected an empty folder or an "
            "earlier export. Choose another, or pass --overwrite to replace its files."
        )
    make_folder(settings.out)
    model.save_pretrained(settings.out)
    text = json.dumps(plain(_as_from_here(run.settings)), indent=2) + "\n"
    write_whole(settings.out / "settings.json", text)
    write_whole(settings.out / "README.md", model_card(run, type(model).__name__, settings.out))
    if (step := run.stopped_at) is not None:
        said = f"The run is not finished: it stopped at step {step:,} of {run.settings.steps:,}."
        console.print(said, soft_wrap=True, highlight=False)
    name = type(model).__name__
    out = escape(str(settings.out))
    console.print(
        f"Written: [bold]{out}[/bold]. Load it with slotmesh.models.{name}"
        f'.from_pretrained("{out}")',
        soft_wrap=True,
        highlight=False,
    )
    return settings.out


def _as_from_here(settings: Settings) -> Settings:
    """Settings without the full paths of data and weights: exports may be shared."""
    places: dict[str, Path] = {}
    for name in ("root", "masks"):
        path: Path | None = getattr(settings.data, name, None)
        if path is not None and path.is_relative_to(Path.cwd()):
            places[name] = path.relative_to(Path.cwd())
    return replace(settings, data=replace(settings.data, **places)) if places else settings


def _holds_others(folder: Path) -> bool:
    """Whether a folder contains files, except for hidden ones, and is not an export."""
    if not folder.is_dir() or all(
        (folder / name).is_file() for name in ("model.safetensors", "settings.json")
    ):
        return False
    return any(not path.name.startswith(".") for path in folder.iterdir())


def weights_name(task: str, variant: str) -> str:
    """The folder of a variant's weights.

    Example:
        >>> from slotmesh.training.export import weights_name
        >>> weights_name("multi-dsprites", "SA-MESH")
        'multi-dsprites-sa-mesh'
    """
    return f"{task}-{variant.lower()}"
