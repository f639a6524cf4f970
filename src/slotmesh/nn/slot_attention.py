"""Slot attention with an exchangeable transport."""

from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from slotmesh.nn.noise import SOURCES, Drawn, LearnedGaussian, Seeded, SlotInitializer
from slotmesh.nn.part import Part
from slotmesh.nn.pretrained import Pretrained
from slotmesh.nn.transports import Mesh, SlotTransport, TransportContext
from slotmesh.ops import Transport, checks
from slotmesh.ops.problem import compute_dtype


class SlotAttentionOutput(NamedTuple):
    """The result of :class:`SlotAttention`."""

    slots: Tensor
    """``(..., m, slot_dim)``."""
    attention: Tensor
    """``(..., m, n)``: the weights of the values in the last iteration."""
    transport: Transport
    """The transport of the last iteration: costs, potentials and convergence."""
    trace: Tensor | None
    """``(..., n_iters, m, n)``: the attention of every iteration, if ``trace=True``; one more with
    ``extra_step``."""


class SlotAttention(
    nn.Module,
    Pretrained,
    coders={Part: (Part.to_config, Part.from_config)},  # pyright: ignore[reportArgumentType]
):
    """Turn a set of inputs into a set of slots that compete for the inputs.

    Args:
        input_dim: Size of an input.
        slot_dim: Size of a slot; also of queries, keys and values.
        n_slots: Number of slots; a call can override it.
        transport: How inputs are assigned to slots: :class:`~slotmesh.nn.Mesh` (the default),
            :class:`~slotmesh.nn.Softmax`, :class:`~slotmesh.nn.Sinkhorn` or
            :class:`~slotmesh.nn.EMD`.
        n_iters: Number of iterations.
        mlp_dim: Width of the hidden layers (residual MLP, marginal heads); default twice
            ``slot_dim``.
        init: How slots are initialised: :class:`~slotmesh.nn.LearnedGaussian` (the default),
            :class:`~slotmesh.nn.FixedGaussian`, :class:`~slotmesh.nn.LearnedSlots` or
            :class:`~slotmesh.nn.SharedSlot`.
        implicit: Differentiate slots implicitly (Chang et al. 2022): gradients pass through the
            last iteration only, so memory does not grow with the iterations. Slots passed to the
            call then get no gradient; a learned initialiser gets a straight-through gradient.
        extra_step: With ``implicit``, take the differentiated iteration in addition to ``n_iters``
            instead of as the last of them.
        raw_values: Compute values from the inputs without normalising them, so that slots can keep
            their mean and norm. Keys and marginals still use normalised inputs.

    Example:
        >>> import torch
        >>> from slotmesh import SlotAttention
        >>> from slotmesh.nn import Mesh
        >>> attention = SlotAttention(input_dim=64, slot_dim=64, n_slots=7, transport=Mesh())
        >>> out = attention(torch.randn(2, 100, 64))
        >>> out.slots.shape, out.attention.shape
        (torch.Size([2, 7, 64]), torch.Size([2, 7, 100]))
    """

    def __init__(
        self,
        input_dim: int,
        slot_dim: int,
        n_slots: int,
        transport: SlotTransport | None = None,
        n_iters: int = 3,
        *,
        mlp_dim: int | None = None,
        init: SlotInitializer | None = None,
        implicit: bool = False,
        extra_step: bool = False,
        raw_values: bool = False,
    ) -> None:
        super().__init__()
        transport = Mesh() if transport is None else transport
        init = LearnedGaussian() if init is None else init
        input_dim = checks.as_count("SlotAttention", "input_dim", input_dim, 1)
        slot_dim = checks.as_count("SlotAttention", "slot_dim", slot_dim, 1)
        n_slots = checks.as_count("SlotAttention", "n_slots", n_slots, 1)
        n_iters = checks.as_count("SlotAttention", "n_iters", n_iters, 1)
        wide = 2 * slot_dim if mlp_dim is None else mlp_dim
        mlp_dim = checks.as_count("SlotAttention", "mlp_dim", wide, 1)
        say = "an object such as Softmax(), Sinkhorn(), EMD() or Mesh()"
        checks.check_instance("SlotAttention", "transport", transport, SlotTransport, say)
        say = "an object such as LearnedGaussian(), FixedGaussian() or LearnedSlots()"
        checks.check_instance("SlotAttention", "init", init, SlotInitializer, say)
        if extra_step and not implicit:
            raise ValueError(
                "SlotAttention: got extra_step without implicit, expected both or neither. Pass "
                "implicit=True, or raise n_iters by one."
            )
        self.n_slots = n_slots
        self.n_iters = n_iters
        self.implicit = implicit
        self.extra_step = extra_step
        self.raw_values = raw_values
        # A saved model records its parts even if they are the defaults.
        config: Any = self._hub_mixin_config  # pyright: ignore
        config.update(transport=transport.to_config(), init=init.to_config(), mlp_dim=mlp_dim)

        self.transport = transport.bind(input_dim=input_dim, slot_dim=slot_dim, hidden_dim=mlp_dim)
        self.init = init.bind(n_slots=n_slots, slot_dim=slot_dim)
        self.norm_inputs = nn.LayerNorm(input_dim)
        self.norm_slots = nn.LayerNorm(slot_dim)
        self.to_query = nn.Linear(slot_dim, slot_dim, bias=False)
        self.to_key = nn.Linear(input_dim, slot_dim, bias=False)
        self.to_value = nn.Linear(input_dim, slot_dim, bias=False)
        self.gru = nn.GRUCell(slot_dim, slot_dim)
        self.mlp = nn.Sequential(
            nn.LayerNorm(slot_dim),
            nn.Linear(slot_dim, mlp_dim),
            nn.ReLU(),
            nn.Linear(mlp_dim, slot_dim),
        )
        self.note_settings()

    def live_settings(self) -> dict[str, Any]:
        """Settings that can be changed after construction, as they are now, ready for JSON."""
        names = ("n_iters", "implicit", "extra_step", "raw_values")
        found = {name: checks.plain(getattr(self, name)) for name in names}
        return found | {"transport": self.transport.to_config(), "init": self.init.to_config()}

    def forward(
        self,
        inputs: Tensor,
        slots: Tensor | None = None,
        *,
        n_slots: int | None = None,
        input_mask: Tensor | None = None,
        slot_mask: Tensor | None = None,
        generator: torch.Generator | None = None,
        noise: Tensor | int | None = None,
        trace: bool = False,
    ) -> SlotAttentionOutput:
        """Compute slots from inputs.

        Args:
            inputs: ``(..., n, input_dim)``.
            slots: Initial slots ``(..., m, slot_dim)``, such as those of the previous frame;
                default: those of ``init``.
            n_slots: Number of slots in this call.
            input_mask: ``(..., n)``, True where an input is real.
            slot_mask: ``(..., m)``, True where a slot is real; the others are returned unchanged.
            generator: Source of random numbers for the initial slots and MESH's noise.
            noise: Reproducible randomness that also works under ``torch.compile(fullgraph=True)``,
                where a generator cannot be used. Either a seed (an int, or a tensor ``()`` of an
                integer dtype), which replaces the generator; or standard normal numbers
                ``(..., m, n)``, which replace MESH's noise only, in units of its standard
                deviation.
            trace: Also return the attention of every iteration.

        Returns:
            A :class:`SlotAttentionOutput`.
        """
        source, noise = self._randomness(generator, noise)
        start, m = self._start(inputs, slots, n_slots, input_mask, slot_mask, source)
        x = self.norm_inputs(inputs)
        keys, values = self.to_key(x), self.to_value(inputs if self.raw_values else x)
        if noise is not None:
            source = Drawn([self._checked_noise(noise, inputs, m)])
        context = self.transport.begin(
            x,
            m,
            slot_mask=slot_mask,
            input_mask=input_mask,
            generator=source,  # pyright: ignore[reportArgumentType]
        )
        if noise is not None and source.taken == 0:
            raise ValueError(
                f"SlotAttention: got a noise tensor, but this {type(self.transport).__name__} adds "
                "no noise. Leave it out, or use Mesh with noise above 0."
            )
        z = start
        attentions: list[Tensor] = []
        n_steps = self.n_iters + int(self.extra_step)
        for i in range(n_steps):
            last = i == n_steps - 1
            if self.implicit and last:
                z = z.detach()
                if slots is None and self.init.learned:
                    z = z + (start - start.detach())
            with torch.no_grad() if self.implicit and not last else nullcontext():
                z, attention, transport = self._step(z, keys, values, context)
            if trace:
                attentions.append(attention)
        return SlotAttentionOutput(
            slots=z,
            attention=attention,  # pyright: ignore[reportPossiblyUnboundVariable]
            transport=transport,  # pyright: ignore[reportPossiblyUnboundVariable]
            trace=torch.stack(attentions, -3) if trace else None,
        )

    def _step(
        self, slots: Tensor, keys: Tensor, values: Tensor, context: TransportContext
    ) -> tuple[Tensor, Tensor, Transport]:
        """One iteration: transport, recurrent update, residual MLP."""
        z = self.norm_slots(slots)
        attention, transport = self.transport(self.to_query(z), keys, z, context)
        updates = (attention.to(values.dtype) @ values).to(slots.dtype)
        flat = _gru(self.gru, updates.flatten(0, -2), slots.flatten(0, -2))
        # Autocast would leave slots in half precision, and its rounding would accumulate.
        new = flat.reshape(slots.shape).to(slots.dtype)
        new = new + self.mlp(new)
        if context.slot_mask is not None:
            new = torch.where(context.slot_mask.unsqueeze(-1), new, slots)
        return new, attention, transport

    def _randomness(
        self, generator: torch.Generator | None, noise: Tensor | int | None
    ) -> tuple[Any, Tensor | None]:
        """The source of random numbers, and MESH's noise if it is given as a tensor."""
        if generator is not None:
            say = "a torch.Generator. Pass a number as noise"
            checks.check_instance("SlotAttention", "generator", generator, SOURCES, say)
        if isinstance(noise, Tensor) and noise.is_floating_point():
            return generator, noise
        if noise is None:
            return generator, None
        seed: Any = noise if isinstance(noise, Tensor) else checks.plain(noise)
        if isinstance(noise, Tensor):
            good = noise.ndim == 0 and noise.dtype in (torch.int64, torch.int32)
        else:
            good = type(seed) is not bool and isinstance(seed, int) and -(2**63) <= seed < 2**63
        if not good:
            raise ValueError(
                f"SlotAttention: noise is {noise!r}, expected a seed (an int of 64 bits, or a "
                "tensor () of an integer dtype) or a floating-point tensor (..., m, n). Draw the "
                "latter with torch.randn."
            )
        if generator is not None:
            raise ValueError(
                "SlotAttention: got both a seed as noise and a generator, expected one of them. "
                "Leave one of them out."
            )
        return Seeded(seed), None

    def _checked_noise(self, noise: Tensor, inputs: Tensor, m: int) -> Tensor:
        """The noise ``(..., m, n)`` in the dtype of costs."""
        shape = (*inputs.shape[:-2], m, inputs.shape[-2])
        if not checks.broadcasts_to(noise.shape, shape) or noise.device != inputs.device:
            raise ValueError(
                f"SlotAttention: noise has shape {tuple(noise.shape)} on {noise.device}, expected "
                f"one that broadcasts to {shape} on {inputs.device}. Draw it with "
                "torch.randn(shape, device=inputs.device)."
            )
        return noise.to(compute_dtype(inputs)).expand(shape)

    def _start(
        self,
        inputs: Tensor,
        slots: Tensor | None,
        n_slots: int | None,
        input_mask: Tensor | None,
        slot_mask: Tensor | None,
        generator: Any,
    ) -> tuple[Tensor, int]:
        """Check the arguments; return the initial slots ``(..., m, slot_dim)`` and their number."""
        name, input_dim = "SlotAttention", self.to_key.in_features
        slot_dim = self.to_key.out_features
        checks.check_matrix(name, "inputs", inputs, f"(..., inputs n, {input_dim})")
        if inputs.shape[-1] != input_dim:
            raise ValueError(
                f"{name}: inputs have shape {tuple(inputs.shape)}, expected (..., n, {input_dim}). "
                "Channels come last: flatten an image with x.flatten(2).mT."
            )
        _check_fits("inputs", inputs, self.to_key.weight)
        batch = inputs.shape[:-2]
        if input_mask is not None:
            _check_mask("input_mask", input_mask, inputs, of="inputs")
        if slots is None:
            m = self.n_slots if n_slots is None else n_slots
            m = checks.as_count(name, "n_slots", m, 1)
            start = self.init(tuple(batch), m, generator)
        else:
            checks.check_matrix(name, "slots", slots, f"(..., slots m, {slot_dim})")
            if slots.shape[-1] != slot_dim or slots.shape[:-2] != batch:
                expected = ", ".join([*(str(size) for size in batch), "m", str(slot_dim)])
                raise ValueError(
                    f"{name}: slots have shape {tuple(slots.shape)}, expected ({expected}) to fit "
                    f"inputs of shape {tuple(inputs.shape)}. Expand them over the batch first."
                )
            if n_slots is not None and n_slots != slots.shape[-2]:
                raise ValueError(
                    f"{name}: n_slots is {n_slots} but got {slots.shape[-2]} slots, expected the "
                    "same number. Leave n_slots out if you pass slots."
                )
            _check_fits("slots", slots, self.to_query.weight)
            start, m = slots, slots.shape[-2]
        if slot_mask is not None:
            _check_mask("slot_mask", slot_mask, start, of="slots")
        return start, m


def _check_fits(name: str, value: Tensor, weight: Tensor) -> None:
    """Check device, dtype (unless autocast converts it) and finite values."""
    if value.device != weight.device:
        raise ValueError(
            f"SlotAttention: {name} are on {value.device}, expected {weight.device}, where the "
            "module is. Move one of them with .to(device)."
        )
    if value.dtype != weight.dtype and not torch.is_autocast_enabled(value.device.type):
        raise ValueError(
            f"SlotAttention: {name} are {value.dtype}, expected {weight.dtype} like the module. "
            f"Convert one of them with .to({weight.dtype}) or .to({value.dtype}), or use "
            "torch.autocast."
        )
    checks.check_finite("SlotAttention", name, value, "Look for a NaN or an overflow upstream.")


def _check_mask(name: str, mask: Tensor, elements: Tensor, *, of: str) -> None:
    """Check that a mask fits elements ``(..., k, d)`` and leaves some in each batch element."""
    shape = tuple(elements.shape[:-1])
    checks.check_vector("SlotAttention", name, mask, shape[-1], elements, of=of, mask=True)
    if not checks.broadcasts_to(tuple(mask.shape), shape):
        raise ValueError(
            f"SlotAttention: {name} has shape {tuple(mask.shape)}, expected {shape} to fit {of} "
            f"of shape {tuple(elements.shape)}. Give it their leading dimensions, or none."
        )
    if not checks.can_read_values(mask):
        return
    empty = ~mask.any(-1)
    if bool(empty.any()):
        raise ValueError(
            f"SlotAttention: {name} masks every element of {int(empty.sum())} of {empty.numel()} "
            "batch elements, expected at least one True in each. Leave these batch elements out."
        )


def _gru(cell: nn.GRUCell, x: Tensor, h: Tensor) -> Tensor:
    """Apply the cell, in plain operations where torch compiles, exports or transforms it.

    The fused CUDA kernel cannot be traced with a batch size that varies, nor be fused further, and
    the cell on a CPU has no derivative inside ``torch.vmap``.
    """
    if not torch.compiler.is_compiling() and not checks.in_transform():
        return cell(x, h)
    mine = F.linear(x, cell.weight_ih, cell.bias_ih)
    theirs = F.linear(h, cell.weight_hh, cell.bias_hh)
    (r, z, n), (r_h, z_h, n_h) = mine.chunk(3, -1), theirs.chunk(3, -1)
    new = torch.tanh(n + torch.sigmoid(r + r_h) * n_h)
    # Like the cell under autocast: everything in one precision.
    return new + torch.sigmoid(z + z_h) * (h.to(new.dtype) - new)
