"""Where kernels start: every launch goes through here, and onto the device of its tensors."""

from typing import Any

import torch

_torch: Any = torch


def run_on(
    device: torch.device,
    kernel: Any,
    grid: tuple[int, ...],
    *args: Any,
    together: bool = False,
    **options: Any,
) -> None:
    """Launch a kernel on a device; Triton itself takes the current one, whatever it is given.

    Args:
        device: Where all tensors among the arguments are.
        kernel: A function of ``triton.jit``.
        grid: How many programs; only the first dimension may be over 65,535.
        args: Of the kernel.
        together: Whether programs wait for each other, so that all of them have to run at once. The
            launch is then a cooperative one: the driver starts all programs or, while others hold
            the processors, none, and it refuses a grid that can never fit. At most one program for
            each processor always fits.
        options: More arguments of the kernel, and of the compiler.
    """
    if together:
        options["launch_cooperative_grid"] = True
    if device.type != "cuda" or device.index == _torch.cuda.current_device():
        kernel[grid](*args, **options)
        return
    with _torch.cuda.device(device):
        kernel[grid](*args, **options)
