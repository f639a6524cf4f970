"""``python -m paper features``: SA and SA-MESH on features of an encoder trained without labels.

The encoder is a small vision transformer that learns to fill in masked patches of images of the
ClevrTex world: no labels, no other data. It is then frozen, and both variants learn to reconstruct
its features through slots, with the same seed, images and number of steps.
"""

import json
import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from torch import Tensor, nn

from paper.recorded import by_flag, command_of
from slotmesh.environment import environment
from slotmesh.files import write_whole
from slotmesh.models import to_unit
from slotmesh.training.evaluate import evaluate_run, strict
from slotmesh.training.loop import run_train
from slotmesh.training.places import place_of
from slotmesh.training.reading import read_csv
from slotmesh.training.runs import open_run
from slotmesh.training.settings import Hardware, at_least
from slotmesh.training.tasks import experiment, preset
from slotmesh.training.tasks.experiment import mix
from slotmesh.training.tasks.sources import world_seed
from slotmesh.worlds import make_world

HOW = (
    "A vision transformer that fills in masked patches (SimMIM: 60% of the blocks of 2 x 2 patches "
    "are masked, the loss is the mean squared error of their pixels), trained on the training "
    "images of the ClevrTex world alone, without labels; then every number of its features is "
    "given mean 0 and deviation 1 over training images, and it is frozen."
)
_MASKED = 0.6
_BLOCK = 2
_LR = 1e-3
_DECAY = 0.05
_WARMUP = 0.05
_SAVE_S = 20.0
_RENDERED = 512
# Images over which features are standardised.
_STANDARD = 1024


@dataclass(frozen=True)
class FeaturesStudy:
    """Compare SA and SA-MESH on features of an encoder trained without labels."""

    variants: tuple[str, ...] = ("SA", "SA-MESH")
    """Variants to compare."""
    seed: int = 0
    """Seed of the encoder, of the slots, and of the order of the images."""
    size: int = 64
    """Width and height of the images."""
    patch: int = 4
    """Width and height of a patch."""
    dim: int = 192
    """Size of a feature."""
    depth: int = 6
    """Layers of the encoder."""
    images: int = 20_000
    """Training images, of encoder and slots."""
    test_size: int = 1000
    """Test images."""
    encoder_steps: int = 3000
    """Training steps of the encoder."""
    encoder_batch: int = 256
    """Images per step of the encoder."""
    steps: int = 3000
    """Training steps of the slots."""
    batch_size: int = 32
    """Images per step of the slots."""
    lr: float = 4e-4
    """Adam's learning rate of the slots: twice the usual, for few steps."""
    hidden: int = 1024
    """Width of the three hidden layers of the decoder."""
    device: str = "auto"
    """cpu, cuda, or auto. A GPU trains in bfloat16, the CPU in single precision."""
    runs: Path = Path("runs/features-study")
    """Folder for the encoder, the features and the runs. The same command resumes from it."""
    out: Path = Path("results/features/clevrtex.json")
    """The result."""


def run_features(settings: FeaturesStudy, console: Console | None = None) -> dict[str, Any]:
    """Train the encoder, compute its features, train and test the variants; write the result.

    Raises:
        ValueError: If a setting is wrong, or the folder holds a study with other settings.
        SystemExit: If it was asked to stop during training; the same command resumes.
    """
    console = Console() if console is None else console
    for name in ("patch", "dim", "depth", "images", "test_size", "encoder_steps", "steps"):
        at_least(name, getattr(settings, name), 1)
    if settings.size % (_BLOCK * settings.patch):
        raise ValueError(
            f"--size is {settings.size}, expected a multiple of {_BLOCK * settings.patch}: blocks "
            f"of {_BLOCK} x {_BLOCK} patches are masked."
        )
    device = place_of(settings.device)
    encoder = train_encoder(settings, device, console)
    found: dict[str, Any] = {}
    for variant in settings.variants:
        asked = _settings_of(settings, variant, device)
        run_train(asked, console)
        run = open_run(asked.folder)
        tested = evaluate_run(run, device=str(device), console=console)
        model = experiment(asked).fresh_model()
        found[variant] = {
            "metrics": tested["metrics"],
            "loss": tested["loss"],
            "blind": tested["blind"],
            "n": tested["n"],
            "undefined": tested["undefined"],
            "parameters": sum(p.numel() for p in model.parameters()),
            "seconds": _seconds(asked.folder),
            "settings": by_flag(asked),
        }
        _picture(asked.folder, settings.out.with_name(f"{settings.out.stem}-{variant}.png"))
    result = strict(
        {
            "command": command_of("features", settings, {}),
            "data": "slotmesh's own procedural world for ClevrTex; no real dataset",
            "seed": settings.seed,
            "encoder": {"how": HOW, **encoder},
            "variants": found,
            "environment": environment(device),
        }
    )
    settings.out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(settings.out, json.dumps(result, indent=2) + "\n")
    for variant, one in found.items():
        words = ", ".join(f"{name} {value:.3f}" for name, value in one["metrics"].items())
        console.print(escape(f"{variant}: {words}"), highlight=False, soft_wrap=True)
    console.print(escape(f"Written: {settings.out}"), highlight=False, soft_wrap=True)
    return result


def _settings_of(asked: FeaturesStudy, variant: str, device: torch.device) -> Any:
    start: Any = preset("features", variant, "paper")
    every = max(1, asked.steps // 5)
    cuda = device.type == "cuda"
    hardware = Hardware(
        accelerator="gpu" if cuda else "cpu",
        precision="bf16" if cuda else "32",
        # Compiling takes longer than these few steps.
        compile="no",
    )
    return replace(
        start,
        seed=asked.seed,
        out=asked.runs / variant,
        steps=asked.steps,
        val_every=every,
        save_every=every,
        data=replace(
            start.data,
            world="clevrtex",
            size=asked.size,
            batch_size=asked.batch_size,
            train_size=asked.images,
            val_size=min(256, asked.test_size),
            test_size=asked.test_size,
            seed=asked.seed,
            cache=asked.runs / "cache",
        ),
        model=replace(
            start.model,
            backbone=str(asked.runs / "encoder"),
            n_slots=11,
            hidden=asked.hidden,
        ),
        optim=replace(start.optim, lr=asked.lr),
        hardware=hardware,
    )


# ---- the encoder ----


def train_encoder(
    settings: FeaturesStudy, device: torch.device, console: Console
) -> dict[str, Any]:
    """Train the encoder, or resume; its folder then holds it as safetensors, and how it was made.

    Raises:
        ValueError: If the folder holds an encoder with other settings, or transformers is missing.
    """
    folder = settings.runs / "encoder"
    about = _about(settings)
    done = folder / "study.json"
    if done.is_file():
        record = json.loads(done.read_text(encoding="utf-8"))
        _check_same(about, record["settings"], folder)
        return record
    saved = settings.runs / "encoder.pt"
    training = _Encoder(settings, device)
    if saved.is_file():
        state = torch.load(saved, map_location=device, weights_only=True)
        _check_same(about, state.pop("about"), saved)
        training.load_state_dict(state)
    images = _render(settings, device, console)
    console.print(
        f"Training the encoder: {settings.encoder_steps} steps of {settings.encoder_batch}, from "
        f"step {training.step}",
        highlight=False,
    )
    settings.runs.mkdir(parents=True, exist_ok=True)
    began = last = time.monotonic()
    before = training.seconds
    while training.step < settings.encoder_steps:
        training.learn(images)
        now = time.monotonic()
        training.seconds = before + now - began
        if training.step % max(1, settings.encoder_steps // 8) == 0:
            console.print(
                f"encoder step {training.step}/{settings.encoder_steps}  loss "
                f"{training.note():.4f}  {training.seconds:.0f} s",
                highlight=False,
            )
        if now - last > _SAVE_S:
            last = now
            part = saved.with_suffix(".part")
            torch.save(training.state_dict() | {"about": about}, part)
            part.replace(saved)
    record = {
        "settings": about,
        "seconds": round(training.seconds, 1),
        "losses": training.losses,
        "parameters": sum(p.numel() for p in training.vit.parameters()),
    }
    training.standardise(images)
    training.write(folder)
    write_whole(done, json.dumps(record, indent=2) + "\n")
    saved.unlink(missing_ok=True)
    return record


class _Encoder:
    """A vision transformer, a linear layer from its features to pixels, and an optimiser."""

    def __init__(self, asked: FeaturesStudy, device: torch.device) -> None:
        try:
            from transformers import ViTConfig, ViTModel
        except ImportError as error:
            raise ValueError(
                "The encoder is a model of transformers, which is not installed. Install it with "
                "pip install transformers."
            ) from error
        self.asked = asked
        self.device = device
        config = ViTConfig(
            hidden_size=asked.dim,
            num_hidden_layers=asked.depth,
            num_attention_heads=max(1, asked.dim // 64),
            intermediate_size=4 * asked.dim,
            image_size=asked.size,
            patch_size=asked.patch,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(mix(asked.seed, "encoder", 0))
            self.vit: Any = ViTModel(config, add_pooling_layer=False, use_mask_token=True)
            self.head = nn.Linear(asked.dim, 3 * asked.patch**2)
        self.both = nn.ModuleDict({"vit": self.vit, "head": self.head}).to(device).train()
        self.adam = torch.optim.AdamW(
            self.both.parameters(), lr=_LR, weight_decay=_DECAY, betas=(0.9, 0.95)
        )
        self.step = 0
        self.seconds = 0.0
        self.losses: list[list[float]] = []
        """Step and loss, a few times."""
        self._latest = torch.zeros((), device=device)

    def learn(self, images: Tensor) -> None:
        """Fill in the masked patches of a batch of uint8 images, and learn from it."""
        asked, side = self.asked, self.asked.size // self.asked.patch
        steps, warmup = asked.encoder_steps, max(1, round(_WARMUP * asked.encoder_steps))
        rate = min(1.0, (self.step + 1) / warmup)
        rate *= 0.5 * (1 + math.cos(math.pi * self.step / steps))
        for group in self.adam.param_groups:
            group["lr"] = _LR * rate
        dice = torch.Generator().manual_seed(mix(asked.seed, "masks", self.step))
        n = min(asked.encoder_batch, len(images))
        which = torch.randint(len(images), (n,), generator=dice).to(images.device)
        blocks = torch.rand(n, side // _BLOCK, side // _BLOCK, generator=dice) < _MASKED
        masked = blocks.repeat_interleave(_BLOCK, 1).repeat_interleave(_BLOCK, 2).flatten(1)
        masked = masked.to(self.device)
        pixels = to_unit(images[which].to(self.device))
        half = self.device.type == "cuda"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=half):
            out = self.vit(pixels, bool_masked_pos=masked).last_hidden_state[:, 1:]
            guess = self.head(out)
        target = nn.functional.pixel_unshuffle(pixels, asked.patch).flatten(2).mT
        error = (guess.float() - target).square().mean(-1)
        loss = (error * masked).sum() / masked.sum().clamp_min(1)
        self.adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.both.parameters(), 1.0)
        self.adam.step()
        self._latest = loss.detach()
        self.step += 1

    @torch.no_grad()
    def standardise(self, images: Tensor) -> None:
        """Give every number of a feature mean 0 and deviation 1, by the last normalisation.

        What all patches of all images have in common would hide the differences from slots.
        """
        self.vit.eval()
        parts = [
            self.vit(to_unit(some.to(self.device))).last_hidden_state[:, 1:].flatten(0, 1)
            for some in images[:_STANDARD].split(64)
        ]
        std, mean = torch.std_mean(torch.cat(parts).double(), 0)
        last = self.vit.layernorm
        last.weight.copy_(last.weight / std.clamp_min(1e-6))
        last.bias.copy_((last.bias - mean) / std.clamp_min(1e-6))

    def note(self) -> float:
        """Keep the latest loss, and return it."""
        value = float(self._latest)
        self.losses.append([self.step, value])
        return value

    def state_dict(self) -> dict[str, Any]:
        """Everything to resume from."""
        return {
            "both": self.both.state_dict(),
            "adam": self.adam.state_dict(),
            "step": self.step,
            "seconds": self.seconds,
            "losses": self.losses,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume."""
        self.both.load_state_dict(state["both"])
        self.adam.load_state_dict(state["adam"])
        self.step, self.seconds = state["step"], state["seconds"]
        self.losses = state["losses"]

    def write(self, folder: Path) -> None:
        """Write the transformer as ``save_pretrained`` does, with the range of its pixels."""
        from transformers.utils import logging

        logging.disable_progress_bar()
        self.vit.cpu().eval().save_pretrained(folder)
        logging.enable_progress_bar()
        half = [0.5, 0.5, 0.5]
        size = {"height": self.asked.size, "width": self.asked.size}
        about = {"image_mean": half, "image_std": half, "size": size, "do_center_crop": False}
        write_whole(folder / "preprocessor_config.json", json.dumps(about, indent=2) + "\n")


def _render(settings: FeaturesStudy, device: torch.device, console: Console) -> Tensor:
    """The training images, uint8 ``(n, 3, H, W)``, on the device."""
    seed = world_seed(settings.seed, "train")
    world = make_world("clevrtex", seed=seed, device=device, size=settings.size)
    began = time.monotonic()
    parts: list[Tensor] = []
    for first in range(0, settings.images, _RENDERED):
        index = range(first, min(first + _RENDERED, settings.images))
        parts.append(world.sample(index).image)  # pyright: ignore
    said = f"Rendered {settings.images} images in {time.monotonic() - began:.0f} s"
    console.print(said, highlight=False)
    return torch.cat(parts)


def _about(settings: FeaturesStudy) -> dict[str, Any]:
    """The settings that determine the encoder."""
    names = ("seed", "size", "patch", "dim", "depth", "images", "encoder_steps", "encoder_batch")
    return {name: getattr(settings, name) for name in names}


def _check_same(asked: dict[str, Any], kept: dict[str, Any], where: Path) -> None:
    for name, value in asked.items():
        if kept.get(name) != value:
            raise ValueError(
                f"{where} holds an encoder with --{name.replace('_', '-')} {kept.get(name)}, but "
                f"got {value}. Choose another folder with --runs."
            )


# ---- what runs leave behind ----


def _seconds(folder: Path) -> float | None:
    values = read_csv(folder / "metrics.csv").get("seconds", [])
    return round(values[-1], 1) if values else None


def _picture(folder: Path, path: Path) -> None:
    """Keep the last picture of a run beside the result."""
    found = sorted((folder / "pictures").glob("step-*.png"))
    if found:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, found[-1].read_bytes())
