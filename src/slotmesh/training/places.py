"""Which device a command computes on: an NVIDIA (or AMD) GPU, or the CPU."""

import torch

# Scenes are made, and metrics summed up, in float64.
NO_FLOAT64 = "an Apple GPU, which has no float64 for scenes and metrics"


def gpu_count() -> int:
    """GPUs that torch can compute on here; an Apple GPU does not count."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def place_of(device: str) -> torch.device:
    """The device that a command's ``--device`` means: auto, cpu, cuda, or cuda:1.

    Raises:
        ValueError: If it is none of these, or not there.
    """
    if device in ("auto", "cpu"):
        return torch.device("cuda" if device == "auto" and gpu_count() else "cpu")
    kind, colon, number = device.partition(":")
    if kind == "mps":
        raise ValueError(f"--device is {device}, {NO_FLOAT64}. Pass cpu.")
    if kind != "cuda" or (colon and not number.isdecimal()):
        raise ValueError(f"--device is {device!r}, expected cpu, cuda or auto.")
    count = gpu_count()
    if count == 0:
        raise ValueError(f"--device is {device}, but torch finds no GPU here. Pass cpu.")
    if colon and int(number) >= count:
        raise ValueError(
            f"--device is {device}, but torch finds {count} GPUs here. "
            f"Pass one of cuda:0 to cuda:{count - 1}."
        )
    return torch.device(device)
