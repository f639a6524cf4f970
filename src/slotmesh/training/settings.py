"""Settings that all tasks share. Docstrings are the help text of the command line."""

import dataclasses
import math
import re
import types
import typing
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import tyro

MOST_SAMPLES = 10_000_000
"""Largest dataset: the order of its samples is kept in memory."""

InitName = Literal["gaussian", "fixed-gaussian", "learned-slots", "shared-slot"]


@dataclass(frozen=True)
class Data:
    """The data to train and evaluate on."""

    batch_size: int = 64
    """Samples per step, over all processes."""
    train_size: int | None = None
    """Number of different training samples; by default, as many as the steps need."""
    val_size: int = 320
    """Number of validation samples."""
    test_size: int = 1000
    """Number of test samples, for `slotmesh evaluate`."""
    seed: int = 0
    """Seed of the dataset."""

    def check(self) -> None:
        """Raise a ValueError that names the flag of a wrong setting."""
        for flag in ("batch_size", "val_size", "test_size"):
            at_least(f"data.{flag}", getattr(self, flag), 1)
        for flag in ("batch_size", "train_size", "val_size", "test_size"):
            at_most(f"data.{flag}", getattr(self, flag) or 0, MOST_SAMPLES)
        at_least("data.seed", self.seed, 0)
        if self.train_size is not None and self.train_size < self.batch_size:
            raise ValueError(
                f"--data.train-size is {self.train_size}, expected at least --data.batch-size, "
                f"which is {self.batch_size}."
            )


@dataclass(frozen=True)
class ImageData(Data):
    """The data to train and evaluate on."""

    root: Path | None = None
    """The real dataset: its folder, an HDF5 file (in the authors' layout, or as `slotmesh data
    convert` writes it), or a folder with train.h5, val.h5 and test.h5. By default, the procedural
    world. For your own images, use `slotmesh train images`."""
    partial: bool = False
    """Accept an incomplete copy of the dataset, and test on the split that is there."""
    easy: bool = False
    """Use the easy version of the procedural world: a few large objects in clear colours, which a
    small model learns in minutes. Results cannot be compared with the paper's tables.
    Multi-dSprites: three sprites, cyan, magenta and yellow, on black. CLEVR: two or three large
    rubber objects, red, blue or green. ClevrTex: two or three large objects of four bright
    materials, on ebony. CLEVRER: three or four rubber objects, red, blue, green or yellow, one of
    which moves, seen from nearer."""
    size: int = 64
    """Width and height of the images."""
    workers: int = 2
    """Worker processes that read a real dataset; worlds need none."""

    def check(self) -> None:
        """Raise a ValueError that names the flag of a wrong setting."""
        super().check()
        at_least("data.size", self.size, 8)
        at_least("data.workers", self.workers, 0)
        if self.root is not None and not self.root.exists():
            raise no_root(self.root)
        if self.root is not None and self.easy:
            raise ValueError(
                "--data.easy is for the procedural world, but --data.root is given. Leave one of "
                "them out."
            )


def no_root(root: Path) -> ValueError:
    """The error for a dataset that does not exist."""
    return ValueError(
        f"--data.root is {root}, which does not exist, expected the folder or the file of a "
        "dataset. Correct the path."
    )


@dataclass(frozen=True)
class Optim:
    """The optimiser, Adam, and its learning rate; all schedules below multiply the rate."""

    lr: float = 4e-4
    """Learning rate."""
    warmup: int = 0
    """Steps of linear warm-up from 0."""
    warmup_part: float | None = None
    """Warm-up as a fraction of the run, such as 0.05; the longer of the two warm-ups applies."""
    half_life: int | None = None
    """Half-life of the learning rate, in steps."""
    drop_at: float | None = None
    """Fraction of the run after which the learning rate drops to a tenth."""
    cosine: bool = False
    """Anneal the learning rate to 0 along a cosine."""
    clip: float | None = None
    """Clip the norm of the gradient to this value."""
    ema: float | None = None
    """Decay of a moving average of the weights, such as 0.999, which is then validated, evaluated
    and exported instead of the weights. At step t, the decay is at most (1 + t) / (10 + t)."""

    def factor(self, step: int, steps: int) -> float:
        """The factor of the learning rate at one of ``steps`` steps."""
        warmup = max(self.warmup, round((self.warmup_part or 0.0) * steps))
        factor = min(1.0, (step + 1) / warmup) if warmup else 1.0
        if self.half_life is not None:
            factor *= 0.5 ** (step / self.half_life)
        if self.drop_at is not None and step >= self.drop_at * steps:
            factor *= 0.1
        if self.cosine:
            factor *= 0.5 * (1 + math.cos(math.pi * min(step / steps, 1.0)))
        return factor

    def check(self) -> None:
        """Raise a ValueError that names the flag of a wrong setting."""
        positive("optim.lr", self.lr)
        at_least("optim.warmup", self.warmup, 0)
        for flag in ("half_life", "clip"):
            if getattr(self, flag) is not None:
                positive(f"optim.{flag}", getattr(self, flag))
        for flag in ("warmup_part", "drop_at", "ema"):
            value = getattr(self, flag)
            if value is not None and not 0 < value < 1:
                flag = flag.replace("_", "-")
                raise ValueError(f"--optim.{flag} is {value}, expected a number between 0 and 1.")


@dataclass(frozen=True)
class Hardware:
    """Devices, precision and compilation."""

    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    """cpu, gpu, or auto: the GPU if there is one. Apple GPUs are not used: they have no float64,
    which scenes and metrics need."""
    devices: int = 1
    """Number of processes (GPUs) on each machine."""
    nodes: int = 1
    """Number of machines."""
    precision: Literal["32", "tf32", "bf16"] = "32"
    """32: single precision, as in the paper; tf32: faster matrix products on a GPU; bf16: mixed
    precision."""
    compile: Literal["auto", "yes", "no"] = "auto"
    """Compile the training step on a single GPU and capture it as a CUDA graph, which takes a
    minute and makes it several times faster; auto: if the run has 5,000 steps or more."""
    threads: int | None = None
    """CPU threads of each process; torch's own choice by default. Results depend on the number of
    threads in the last bits: see --hardware.deterministic."""
    deterministic: bool = False
    """Make the run reproducible bit for bit: on a CPU by using a single thread, on a GPU by using
    torch's deterministic algorithms, which can be slower, and not compiling the step. Such a run
    refuses to resume if the bits would differ."""

    def check(self) -> None:
        """Raise a ValueError that names the flag of a wrong setting."""
        at_least("hardware.devices", self.devices, 1)
        at_least("hardware.nodes", self.nodes, 1)
        if self.threads is not None:
            at_least("hardware.threads", self.threads, 1)


@dataclass(frozen=True)
class Settings:
    """Settings of a training run."""

    task: tyro.conf.Suppress[str] = ""
    """Which experiment."""
    variant: str = "SA-MESH"
    """Variant of slot attention: SA, SA-SH, SA-EMD, SA-MESH, or another one of the task."""
    preset: Literal["quick", "paper"] = "quick"
    """Defaults of all other settings: quick takes minutes on 2 CPU cores, paper is the paper's."""
    seed: int = 0
    """Seed of the initial weights, the order of the data and all noise."""
    out: Path | None = None
    """Folder of the run. By default runs/TASK/VARIANT-PRESET-SEED; for your own images and videos,
    the name starts with that of their folder. If it contains an unfinished run, the run resumes."""
    overwrite: bool = False
    """Start over, even if the folder contains a run."""
    steps: int = 1000
    """Number of training steps."""
    val_every: int = 250
    """Number of steps between validations, which also draw sample pictures."""
    save_every: int = 250
    """Number of steps between checkpoints; a killed run loses at most these."""
    log_every: int = 50
    """Number of steps between log entries."""
    logger: Literal["tensorboard", "wandb", "none"] = "tensorboard"
    """Where to log besides metrics.csv: TensorBoard, Weights & Biases (if installed), or none."""
    data: Any = None
    model: Any = None
    transport: Any = None
    optim: Optim = field(default_factory=Optim)
    hardware: Hardware = field(default_factory=Hardware)

    def check(self) -> None:
        """Raise a ValueError that names the flag of a wrong setting."""
        for name in ("steps", "val_every", "save_every", "log_every"):
            at_least(name, getattr(self, name), 1)
        at_least("seed", self.seed, 0)
        for part in (self.data, self.model, self.optim, self.hardware):
            part.check()
        try:
            self.transport.build()
        except ValueError as error:
            # Messages begin with the names of the operation and of the setting.
            said = re.sub(r"^\w+: ", "", str(error))
            name, _, rest = said.partition(" ")
            own = hasattr(self.transport, name)
            where = f"{flag(f'transport.{name}')} {rest}" if own else f"--transport: {said}"
            raise ValueError(where) from error
        ranks = self.hardware.devices * self.hardware.nodes
        if self.data.batch_size % ranks:
            raise ValueError(
                f"--data.batch-size is {self.data.batch_size}, expected a multiple of the {ranks} "
                "processes (--hardware.devices times --hardware.nodes)."
            )
        if self.data.val_size < ranks:
            raise ValueError(
                f"--data.val-size is {self.data.val_size}, expected at least one sample for each "
                f"of the {ranks} processes (--hardware.devices times --hardware.nodes)."
            )

    @property
    def folder(self) -> Path:
        """The folder of the run."""
        name = f"{self.variant}-{self.preset}-{self.seed}"
        return Path("runs") / self.task / name if self.out is None else self.out


INCIDENTAL = (
    "out",
    "overwrite",
    "save_every",
    "log_every",
    "logger",
    "hardware",
    "data.workers",
    "data.cache",
)
"""Settings and groups of settings that do not change results: where and how often a run is saved,
and the hardware, which only changes rounding."""


def is_one_of(name: str, names: Iterable[str]) -> bool:
    """Whether a setting, by its name with dots, is named or belongs to a group that is.

    Example:
        >>> from slotmesh.training.settings import INCIDENTAL, is_one_of
        >>> is_one_of("hardware.threads", INCIDENTAL), is_one_of("data.seed", INCIDENTAL)
        (True, False)
    """
    return not {name, name.partition(".")[0]}.isdisjoint(names)


def leaves(settings: Any, prefix: str = "") -> dict[str, Any]:
    """All settings by their names with dots.

    Example:
        >>> from slotmesh.training.settings import leaves
        >>> from slotmesh.training.tasks import preset
        >>> leaves(preset("random-objects", "SA"))["data.n_objects"]
        5
    """
    made: dict[str, Any] = {}
    for entry in dataclasses.fields(settings):
        value = getattr(settings, entry.name)
        name = prefix + entry.name
        made |= leaves(value, f"{name}.") if dataclasses.is_dataclass(value) else {name: value}
    return made


def flag(name: str) -> str:
    """The flag of a setting on the command line."""
    return "--" + name.replace("_", "-")


def at_least(name: str, value: float, least: float) -> None:
    """Check that a setting is not below a bound."""
    if not value >= least:
        raise ValueError(f"{flag(name)} is {value}, expected at least {least}.")


def at_most(name: str, value: float, most: float) -> None:
    """Check that a setting is not above a bound."""
    if not value <= most:
        raise ValueError(f"{flag(name)} is {value}, expected at most {most}.")


def positive(name: str, value: float) -> None:
    """Check that a setting is a finite number above 0."""
    if not 0 < value < float("inf"):
        raise ValueError(f"{flag(name)} is {value}, expected a finite number above 0.")


def plain(settings: Any) -> dict[str, Any]:
    """Convert settings to JSON values."""
    values = dataclasses.asdict(settings)

    def simple(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: simple(v) for k, v in value.items()}
        return str(value) if isinstance(value, Path) else value

    return simple(values)


def rebuild(kind: type, values: dict[str, Any], where: str) -> Any:
    """Convert the result of :func:`plain` back to settings of a kind."""
    hints = typing.get_type_hints(kind)
    known = {f.name for f in dataclasses.fields(kind)}
    unknown = sorted(set(values) - known)
    if unknown:
        raise ValueError(
            f"{where} has the setting {unknown[0]!r}, which {kind.__name__} does not know. It was "
            "written by another version of slotmesh."
        )
    made: dict[str, Any] = {}
    for name, value in values.items():
        hint = hints[name]
        if dataclasses.is_dataclass(hint) and isinstance(value, dict):
            value = rebuild(hint, value, where)  # pyright: ignore[reportArgumentType]
        elif not _fits(value, hint):
            raise ValueError(f"{where} has {value!r} as {name!r}, expected {_name(hint)}.")
        elif value is not None and Path in (hint, *typing.get_args(hint)):
            value = Path(value)
        elif isinstance(value, list):
            value = tuple(value)
        made[name] = value
    return kind(**made)


def _fits(value: Any, hint: Any) -> bool:
    """Whether a JSON value is of a type."""
    origin = typing.get_origin(hint)
    if hint is Any:
        return True
    if origin is Literal:
        return value in typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return any(_fits(value, part) for part in typing.get_args(hint))
    if isinstance(value, bool):
        return hint is bool
    more = {float: (int, float), Path: (str, Path)}
    return isinstance(value, more.get(hint, (list, tuple) if origin is tuple else hint))


def _name(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint)
