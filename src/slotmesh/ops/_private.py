"""Private names of torch and Triton, each with a fallback, and public ones that have no types.

Everything that a new version of either may move is here. ``NAMES`` lists it, so that a test can
report missing names. Without one of them, slotmesh still works, as the comments explain.
"""

from collections.abc import Callable
from typing import Any

import torch

NAMES = (
    "torch._C._functorch.peek_interpreter_stack",
    "torch._C._functorch.get_interpreter_stack",
    "torch._C._functorch.TransformType.Vmap",
    "torch._C._functorch.is_legacy_batchedtensor",
    "torch._C._len_torch_dispatch_stack",
    "triton.language.standard._sum_combine",
    "triton.language.standard._elementwise_max",
    "triton.language.standard._elementwise_min",
)


def find(name: str, fallback: Any) -> Any:
    """The object of a name in ``NAMES``, or the fallback if this version does not have it."""
    assert name in NAMES, name
    package, *path = name.split(".")
    found: Any = torch if package == "torch" else __import__(package + ".language")
    for part in path:
        found = getattr(found, part, None)
    return fallback if found is None else found


def _never(_: object) -> bool:
    return False


# The innermost transform of torch.func, or None. Without it kernels and C run inside transforms
# too, where torch raises an error of its own for what they cannot do.
transform: Callable[[], object] = find("torch._C._functorch.peek_interpreter_stack", lambda: None)
# All of them, or None. Without it C runs inside no transform.
_transforms: Callable[[], list[Any] | None] = find(
    "torch._C._functorch.get_interpreter_stack", lambda: None
)
_VMAP: object = find("torch._C._functorch.TransformType.Vmap", None)
# Whether a tensor is one of the batched backward passes of ``is_grads_batched``. Without it these
# raise an error on the CPU, where backend="torch" still works.
is_batched_gradient: Callable[[Any], bool] = find(
    "torch._C._functorch.is_legacy_batchedtensor", _never
)
# How many dispatch modes (fake tensors, tracing, counting operations) are on. Without it an eager
# call goes through the operators as well, which takes longer.
dispatch_modes: Callable[[], int] = find("torch._C._len_torch_dispatch_stack", lambda: 1)


def only_vmap() -> bool:
    """Whether all transforms of torch.func that this is inside are vmap."""
    found = _transforms()
    return found is not None and all(one.key() == _VMAP for one in found)


# Makes an operator that torch.compile and CUDA graphs take as a whole.
custom_op: Any = torch.library.custom_op
_torch: Any = torch
register_vmap: Any = _torch.library.register_vmap
# A tensor's tangent in forward mode, if it has one.
unpack_dual: Any = _torch.autograd.forward_ad.unpack_dual
