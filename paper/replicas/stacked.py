"""Several modules of one shape as one module that computes all of them at once.

Small networks leave a GPU idle. Stacked, R of them take the time of one: weights, inputs and
outputs have a leading dimension of R. Each computes what it would alone.
"""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from slotmesh.nn import FixedGaussian, LearnedGaussian, LearnedSlots, SharedSlot
from slotmesh.nn.noise import Drawing

M = TypeVar("M", bound=nn.Module)

# Modules with parameters of their own that support a leading dimension.
_STACKABLE = (LearnedGaussian, FixedGaussian, LearnedSlots, SharedSlot)


def stack(modules: Sequence[M]) -> M:
    """One module of the same class that computes all of them at once.

    Parameters and buffers are copies with a leading dimension, under the same names. Inputs and
    outputs have it too: if each module takes ``(..., n, dim)``, this takes ``(R, ..., n, dim)``.
    Pass a :class:`StackedGenerator` if each is to draw what it would alone.

    Args:
        modules: R modules of one class, with the same settings, sizes, dtype and device, composed
            of ``Linear``, ``LayerNorm``, ``GRUCell``, the slot initialisers of :mod:`slotmesh.nn`
            and modules without parameters of their own.

    Raises:
        ValueError: If they differ, or contain other modules.

    Example:
        >>> import torch
        >>> from slotmesh import SlotAttention
        >>> from slotmesh.nn import Softmax
        >>> from paper.replicas.stacked import stack, unstack
        >>> several = [SlotAttention(8, 8, 3, Softmax()) for _ in range(4)]
        >>> together, inputs = stack(several), torch.randn(4, 2, 10, 8)
        >>> slots = torch.randn(4, 2, 3, 8)
        >>> out = together(inputs, slots).slots
        >>> torch.allclose(out[1], several[1](inputs[1], slots[1]).slots, atol=1e-5)
        True
        >>> torch.equal(unstack(together, 1).to_key.weight, several[1].to_key.weight)
        True
    """
    if not modules:
        raise ValueError("stack: got no modules, expected at least one.")
    for i, module in enumerate(modules):
        _check_alike(i, module, modules[0])
    return _join(list(modules))  # pyright: ignore[reportReturnType]


def unstack(stacked: M, which: int) -> M:
    """One module of a stack, in its present state, with copies of its weights.

    Args:
        stacked: From :func:`stack`.
        which: Its index.

    Raises:
        ValueError: If this is not a stack, or has fewer modules.
    """
    sizes = [len(part) for part in stacked.modules() if isinstance(part, Stacked)]
    if not sizes:
        raise ValueError(
            f"unstack: this {type(stacked).__name__} is not stacked, expected the result of stack."
        )
    if not 0 <= which < sizes[0]:
        raise ValueError(f"unstack: which is {which}, expected 0 to {sizes[0] - 1}.")
    return _part(stacked, which)  # pyright: ignore[reportReturnType]


class StackedGenerator(Drawing):
    """Draws for several models at once, for each what a generator of its own would.

    Shapes that are asked for begin with the dimensions of ``shape``, which number the models.

    Args:
        device: Where to draw.
        seeds: One per model, row by row.
        shape: Leading dimensions of the shapes; default one, as long as ``seeds``.

    Example:
        >>> import torch
        >>> from paper.replicas.stacked import StackedGenerator
        >>> from slotmesh.nn.noise import gaussian
        >>> both = gaussian(torch.zeros(2, 4, 3), StackedGenerator("cpu", [5, 6]))
        >>> one = gaussian(torch.zeros(4, 3), torch.Generator().manual_seed(6))
        >>> bool((both[1] == one).all())
        True
    """

    def __init__(
        self,
        device: torch.device | str,
        seeds: Sequence[int],
        shape: tuple[int, ...] | None = None,
    ) -> None:
        self.shape = (len(seeds),) if shape is None else shape
        if not seeds or math.prod(self.shape) != len(seeds):
            raise ValueError(
                f"StackedGenerator: got {len(seeds)} seeds for a shape of {self.shape}, expected "
                "one for each of its elements, and at least one."
            )
        self.parts = [torch.Generator(device) for _ in seeds]
        """The generators, to be registered with a CUDA graph."""
        super().__init__(self.parts[0])
        self.seed(seeds)

    def seed(self, seeds: Sequence[int]) -> None:
        """Start again from these seeds."""
        for part, seed in zip(self.parts, seeds, strict=True):
            part.manual_seed(seed)
        self.asked.clear()

    def _draw(self, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        lead = len(self.shape)
        if tuple(shape[:lead]) != self.shape:
            raise ValueError(
                f"StackedGenerator: asked for noise of shape {tuple(shape)}, expected one that "
                f"begins with {self.shape}, as the seeds do."
            )
        drawn = torch.empty(shape, dtype=dtype, device=self.generator.device)
        for row, part in zip(drawn.view(-1, *shape[lead:]), self.parts, strict=True):
            row.normal_(generator=part)
        return drawn


class Stacked(nn.Module, ABC):
    """Several layers as one; ``(R, ..., dim)`` in and out."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        for name in names:
            self.register_parameter(name, None)

    @abstractmethod
    def one(self) -> nn.Module:
        """A single layer of these sizes, without weights yet."""

    def __len__(self) -> int:
        return len(next(self.parameters()))

    def check(self, x: Tensor) -> None:
        """Raise a ValueError if inputs lack the leading dimension."""
        if x.ndim < 2 or len(x) != len(self):
            raise ValueError(
                f"{type(self).__name__}: the input has shape {tuple(x.shape)}, expected "
                f"({len(self)}, ..., dim): {len(self)} modules are stacked here."
            )


class StackedLinear(Stacked):
    """Linear layers with weights ``(R, out, in)``."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, like: nn.Linear) -> None:
        super().__init__("weight", "bias")
        self.in_features: int = like.in_features
        self.out_features: int = like.out_features

    def one(self) -> nn.Module:
        """A single layer of these sizes, without weights yet."""
        bias = self.bias is not None
        return nn.Linear(self.in_features, self.out_features, bias, device="meta")

    def forward(self, x: Tensor) -> Tensor:
        """``(R, ..., in)`` to ``(R, ..., out)``."""
        self.check(x)
        y = _product(x.reshape(len(x), -1, self.in_features), self.weight, self.bias)
        return y.view(*x.shape[:-1], self.out_features)


class StackedLayerNorm(Stacked):
    """Layer normalisations with weights ``(R, dim)``."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, like: nn.LayerNorm) -> None:
        super().__init__("weight", "bias")
        self.sizes: tuple[int, ...] = like.normalized_shape
        self.eps: float = like.eps

    def one(self) -> nn.Module:
        """A single layer of these sizes, without weights yet."""
        sizes = list(self.sizes)
        return nn.LayerNorm(sizes, self.eps, bias=self.bias is not None, device="meta")

    def forward(self, x: Tensor) -> Tensor:
        """``(R, ..., dim)`` to the same."""
        self.check(x)
        shape = (len(x), *(1,) * (x.ndim - self.weight.ndim), *self.sizes)
        y = F.layer_norm(x, self.sizes, eps=self.eps)
        if self.bias is None:
            return y * self.weight.view(shape)
        return torch.addcmul(self.bias.view(shape), y, self.weight.view(shape))


class StackedGRUCell(Stacked):
    """Gated recurrent units with weights ``(R, 3 hidden, dim)``.

    Inputs are ``(R, ..., dim)``, or flattened to rows ``(R * rows, dim)`` as slot attention does.
    """

    weight_ih: Tensor
    weight_hh: Tensor
    bias_ih: Tensor | None
    bias_hh: Tensor | None

    def __init__(self, like: nn.GRUCell) -> None:
        super().__init__("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        self.input_size: int = like.input_size
        self.hidden_size: int = like.hidden_size

    def one(self) -> nn.Module:
        """A single cell of these sizes, without weights yet."""
        bias = self.bias_ih is not None
        return nn.GRUCell(self.input_size, self.hidden_size, bias, device="meta")

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        """Inputs and hidden states to new hidden states, in the shape of the old ones."""
        if len(x) % len(self):
            self.check(x)
        rows = x.reshape(len(self), -1, self.input_size)
        h = hidden.reshape(len(self), -1, self.hidden_size)
        from_x = _product(rows, self.weight_ih, self.bias_ih)
        from_h = _product(h, self.weight_hh, self.bias_hh)
        two = 2 * self.hidden_size
        reset, update = (from_x[..., :two] + from_h[..., :two]).sigmoid().chunk(2, -1)
        new = torch.tanh(torch.addcmul(from_x[..., two:], reset, from_h[..., two:]))
        return (new + update * (h - new)).view(hidden.shape)


def _product(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``(R, k, in)``, ``(R, out, in)``, ``(R, out)`` to ``(R, k, out)``."""
    if bias is None:
        return torch.bmm(rows, weight.mT)
    return torch.baddbmm(bias.unsqueeze(1), rows, weight.mT)


_LAYERS: dict[type[nn.Module], Callable[[Any], Stacked]] = {
    nn.Linear: StackedLinear,
    nn.LayerNorm: StackedLayerNorm,
    nn.GRUCell: StackedGRUCell,
}


def _join(modules: list[nn.Module]) -> nn.Module:
    """Stack modules that are alike."""
    first = modules[0]
    layer = _LAYERS.get(type(first)) if _own(first) else None
    if _own(first) and layer is None and type(first) not in _STACKABLE:
        known = ", ".join(kind.__name__ for kind in (*_LAYERS, *_STACKABLE))
        raise ValueError(
            f"stack: a {type(first).__name__} has parameters or buffers, and several of it cannot "
            f"be computed at once. Expected parameters and buffers in {known} only."
        )
    joined = copy.deepcopy(first) if layer is None else layer(first)
    joined.train(first.training)
    for name, value in _own(first).items():
        _put(joined, name, torch.stack([_own(module)[name] for module in modules]), value)
    for name, _ in first.named_children():
        setattr(joined, name, _join([module.get_submodule(name) for module in modules]))
    return joined


def _part(stacked: nn.Module, which: int) -> nn.Module:
    """One module of a stack."""
    one = stacked.one() if isinstance(stacked, Stacked) else copy.deepcopy(stacked)
    one.train(stacked.training)
    for name, value in _own(stacked).items():
        _put(one, name, value[which].clone(), value)
    for name, child in stacked.named_children():
        setattr(one, name, _part(child, which))
    return one


def _own(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers of a module itself."""
    return dict(module.named_parameters(recurse=False)) | dict(module.named_buffers(recurse=False))


def _put(module: nn.Module, name: str, value: Tensor, like: Tensor) -> None:
    """Give a module a parameter or a buffer, whichever ``like`` is."""
    value = value.detach()
    if isinstance(like, nn.Parameter):
        module.register_parameter(name, nn.Parameter(value, requires_grad=like.requires_grad))
    else:
        module.register_buffer(name, value)


def _check_alike(i: int, module: nn.Module, first: nn.Module) -> None:
    """Raise a ValueError that says how a module differs from the first."""
    ours: dict[str, nn.Module] = dict(first.named_modules())  # pyright: ignore
    theirs: dict[str, nn.Module] = dict(module.named_modules())  # pyright: ignore
    for name, part in ours.items():
        other = theirs.get(name)
        said = f"stack: {name} of module {i}" if name else f"stack: module {i}"
        if other is None or type(other) is not type(part):
            raise ValueError(f"{said} is a {type(other).__name__}, expected {type(part).__name__}.")
        wanted, got = _described(part), _described(other)
        for key in wanted | got:
            if wanted.get(key) != got.get(key):
                raise ValueError(
                    f"{said} has {key} {got.get(key)}, expected {wanted.get(key)} as in the first."
                )


def _described(module: nn.Module) -> dict[str, object]:
    """What must be equal in stacked modules: settings, shapes, dtypes and devices."""
    plain = (bool, int, float, str, tuple, type(None))
    found: dict[str, object] = {k: v for k, v in vars(module).items() if isinstance(v, plain)}
    for name, value in _own(module).items():
        found[name] = f"of shape {tuple(value.shape)}, {value.dtype} on {value.device}"
    return found
