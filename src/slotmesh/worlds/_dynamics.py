"""Bodies that slide on a plane, slow down and collide: the motion of CLEVRER.

Simplifications that do not show at 64x64: every body is a disc that contains its outline at any
turn, all masses are equal, and friction is applied once per frame by one law per shape. Contacts
are found at their exact times, one after another, so bodies touch and never overlap.

Trajectories are factors of a scene: they are computed with correctly rounded float64 operations in
a fixed order, so they are bit-identical on every device and in every batch.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from slotmesh.worlds._exact import sqrt

N_FRAMES = 128
STEP = 0.028
"""Time units per frame; positions move by ``STEP * velocity``."""
SHAPES = ("cube", "sphere", "cylinder")
HALF_EXTENT = 0.2
# The disc of a cube contains its corners, so that no two drawn objects ever intersect.
RADII = (HALF_EXTENT * math.sqrt(2), HALF_EXTENT, HALF_EXTENT)
# Speed lost per frame, max(offset + slope * v, floor * v), as measured on the real annotations. The
# line fitted to spheres would speed up slow ones; below 0.67 they lose 0.0012 v instead.
LOSS_OFFSET = (0.0060, -0.0024, 0.0063)
LOSS_SLOPE = (0.0046, 0.0048, 0.0045)
LOSS_FLOOR = (0.0, 0.0012, 0.0)
# Measured: below a closing speed of about 2.05 pairs stay together, above it they part at 0.36.
BOUNCE_SPEED = 2.05
RESTITUTION = 0.36
# Only cubes show their turn. An off-centre hit turns a cube by the impulse times its arm times the
# gain, over the inertia of a unit mass; at this gain a hit never adds energy. Decay as measured.
INERTIA = 2 / 3 * HALF_EXTENT**2
SPIN_GAIN = 0.4
SPIN_LOSS_OFFSET = 0.081
SPIN_LOSS_SLOPE = 0.024
# Contacts resolved per frame and video; one tight cluster in thousands of frames needs this many.
_MAX_CONTACTS = 16
# Bodies in contact that approach more slowly than 1e-4 are left alone: a drift of 3e-6 per frame.
_GRAZE = 1e-4


@dataclass(frozen=True)
class Bodies:
    """The state of ``(batch, n)`` bodies at one time; float64."""

    position: Tensor
    """``(batch, n, 2)``."""
    velocity: Tensor
    """``(batch, n, 2)``."""
    facing: Tensor
    """``(batch, n, 2)``: cosine and sine of the turn about the vertical."""
    yaw: Tensor
    """``(batch, n)``: that turn in radians, not reduced to one full turn."""
    spin: Tensor
    """``(batch, n)``: change of the turn per time unit."""


@dataclass(frozen=True)
class Trajectory(Bodies):
    """The states at some frames: the columns of :class:`Bodies` as ``(batch, T, n, ...)``."""

    collided: Tensor
    """bool ``(batch, T, n, n)``: True where the two have met by that frame."""


def simulate(start: Bodies, shape: Tensor, real: Tensor, frames: tuple[int, ...]) -> Trajectory:
    """Simulate from frame 0 and keep the given frames.

    Args:
        start: The state at frame 0; bodies must not overlap.
        shape: int64 ``(batch, n)``, indices into :data:`SHAPES`.
        real: bool ``(batch, n)``; other rows are left alone and collide with nothing.
        frames: Rising whole numbers from 0 to 127.
    """
    device = shape.device
    world = _Motion(shape, real)
    state = Bodies(**{k: v.clone() for k, v in vars(start).items()})
    n = shape.shape[-1]
    collided = torch.zeros(*shape.shape, n, dtype=torch.bool, device=device)
    kept: list[tuple[Tensor, ...]] = []
    for frame in range(frames[-1] + 1):
        if frame > 0:
            state = world.advance(state, collided)
        if frame in frames:
            kept.append((*vars(state).values(), collided.clone()))
    return Trajectory(*(torch.stack(column, dim=1) for column in zip(*kept, strict=True)))


class _Motion:
    """One frame of motion for a batch of videos."""

    def __init__(self, shape: Tensor, real: Tensor) -> None:
        device, n = shape.device, shape.shape[-1]

        def of_shape(values: tuple[float, ...]) -> Tensor:
            return torch.tensor(values, dtype=torch.float64, device=device)[shape]

        self.loss_offset = of_shape(LOSS_OFFSET)
        self.loss_slope = of_shape(LOSS_SLOPE)
        self.loss_floor = of_shape(LOSS_FLOOR)
        self.turns = (shape == SHAPES.index("cube")) & real
        pairs = [(i, j) for i in range(n) for j in range(i + 1, n)]
        self.first = torch.tensor([i for i, _ in pairs], dtype=torch.int64, device=device)
        self.second = torch.tensor([j for _, j in pairs], dtype=torch.int64, device=device)
        radius = of_shape(RADII)
        reach = radius[:, self.first] + radius[:, self.second]
        self.reach2 = reach * reach
        self.real_pair = real[:, self.first] & real[:, self.second]

    def advance(self, state: Bodies, collided: Tensor) -> Bodies:
        """The state one frame later; marks the pairs that met in ``collided``."""
        left = torch.full_like(state.yaw[:, 0], STEP)
        position, velocity = state.position.clone(), state.velocity.clone()
        spin = state.spin.clone()
        # Videos with contacts left in this frame: soon few or none.
        rows = torch.arange(len(left), device=left.device)
        for _ in range(_MAX_CONTACTS):
            time, pair = self._next_contact(position[rows], velocity[rows], left[rows], rows)
            hit = time <= left[rows]
            rows, time, pair = rows[hit], time[hit], pair[hit]
            if len(rows) == 0:
                break
            position[rows] = position[rows] + velocity[rows] * time[:, None, None]
            left[rows] = left[rows] - time
            i, j = self.first[pair], self.second[pair]
            self._bounce(position, velocity, spin, state.facing, rows, i, j)
            collided[rows, i, j] = True
            collided[rows, j, i] = True
        else:
            # A cluster that still has contacts waits for the next frame rather than overlap.
            left[rows] = 0
        position = position + velocity * left[:, None, None]
        facing, yaw = _turn(state.facing, state.yaw, spin)
        return Bodies(position, self._slow_down(velocity), facing, yaw, _spin_down(spin))

    def _next_contact(
        self, position: Tensor, velocity: Tensor, left: Tensor, rows: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Time to the first contact of each video (infinity: none in this frame), and its pair."""
        gap = position[:, self.second] - position[:, self.first]
        closing = velocity[:, self.second] - velocity[:, self.first]
        # Distance equals reach where a t^2 + 2 b t + c = 0; the earlier root, without cancellation.
        a, b = dot(closing, closing), dot(gap, closing)
        c = dot(gap, gap) - self.reach2[rows]
        root = b * b - a * c
        approaching = (-b > _GRAZE * 2 * HALF_EXTENT) & (root >= 0) & self.real_pair[rows]
        time = c.clamp_min(0) / torch.where(approaching, -b + sqrt(root.clamp_min(0)), 1.0)
        time = torch.where(approaching & (time <= left[:, None]), time, math.inf)
        first = time.amin(-1)
        # The lowest pair among ties: argmin does not say which one it returns.
        number = torch.arange(time.shape[-1], device=time.device).expand_as(time)
        pair = torch.where(time == first[:, None], number, time.shape[-1]).amin(-1)
        return first, pair

    def _bounce(
        self,
        position: Tensor,
        velocity: Tensor,
        spin: Tensor,
        facing: Tensor,
        rows: Tensor,
        i: Tensor,
        j: Tensor,
    ) -> None:
        """Apply equal and opposite impulses along the line of centres, in place."""
        gap = position[rows, j] - position[rows, i]
        distance = sqrt(dot(gap, gap))
        normal = gap / distance[:, None]
        approach = -dot(velocity[rows, j] - velocity[rows, i], normal)
        # The speed gained is half of (1 + restitution) times the approach, for equal masses.
        together = approach * 0.5
        impulse = torch.where(approach > BOUNCE_SPEED, together * (1 + RESTITUTION), together)
        push = impulse[:, None] * normal
        velocity[rows, i] = velocity[rows, i] - push
        velocity[rows, j] = velocity[rows, j] + push
        for k, towards in ((i, normal), (j, -normal)):
            change = impulse * (_arm(facing[rows, k], towards, distance) * (SPIN_GAIN / INERTIA))
            change = torch.where(self.turns[rows, k], change, 0.0)
            old = spin[rows, k]
            # Never faster than before the hit or than by the hit alone: no energy is added.
            limit = torch.maximum(old.abs(), change.abs())
            spin[rows, k] = torch.minimum(torch.maximum(old + change, -limit), limit)

    def _slow_down(self, velocity: Tensor) -> Tensor:
        speed = sqrt(dot(velocity, velocity))
        lost = torch.maximum(self.loss_offset + self.loss_slope * speed, self.loss_floor * speed)
        kept = (speed - lost).clamp_min(0) / torch.where(speed > 0, speed, 1.0)
        return velocity * kept[..., None]


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Inner product of plane vectors, written out because a reduction may add in another order."""
    return a[..., 0] * b[..., 0] + a[..., 1] * b[..., 1]


def _arm(facing: Tensor, towards: Tensor, distance: Tensor) -> Tensor:
    """Signed lever arm of a push on the face of a cube that faces a partner.

    The partner's centre lies in direction ``towards`` at ``distance``; it pushes straight on the
    nearest face, level with its own centre but not beyond the edge.
    """
    along = dot(facing, towards)
    across = facing[..., 0] * towards[..., 1] - facing[..., 1] * towards[..., 0]
    faces_x = along.abs() >= across.abs()
    offset = torch.where(faces_x, across * along.sign(), -(along * across.sign())) * distance
    return offset.clamp(-HALF_EXTENT, HALF_EXTENT)


def _turn(facing: Tensor, yaw: Tensor, spin: Tensor) -> tuple[Tensor, Tensor]:
    """Turn by ``spin * STEP`` with the half-angle tangent: no sine needed, and length is kept."""
    angle = spin * STEP
    half = angle * 0.5
    # The series of the tangent, accurate to 1e-7 of a radian at the fastest spins.
    small = half * half
    tangent = half + half * small * (small * (2 / 15) + 1 / 3)
    square = tangent * tangent
    cosine, sine = (1 - square) / (1 + square), (tangent + tangent) / (1 + square)
    x, y = facing[..., 0], facing[..., 1]
    return torch.stack((x * cosine - y * sine, x * sine + y * cosine), dim=-1), yaw + angle


def _spin_down(spin: Tensor) -> Tensor:
    size = spin.abs()
    kept = (size - (SPIN_LOSS_OFFSET + SPIN_LOSS_SLOPE * size)).clamp_min(0)
    return kept * spin.sign()
