"""The motion by itself: contacts, energy, momentum, the measured laws."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from slotmesh.worlds._clevrer_start import draw_start
from slotmesh.worlds._dynamics import (
    BOUNCE_SPEED,
    INERTIA,
    RADII,
    RESTITUTION,
    SHAPES,
    STEP,
    Bodies,
    Trajectory,
    simulate,
)

CUBE, SPHERE, CYLINDER = (SHAPES.index(s) for s in ("cube", "sphere", "cylinder"))
EVERY_FRAME = tuple(range(128))
REAL_DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "clevrer"
# The laws of the real annotations: offset and slope of the speed lost a frame.
MEASURED = {CUBE: (0.0060, 0.0046), CYLINDER: (0.0063, 0.0045), SPHERE: (-0.0024, 0.0048)}


def bodies(position: list, velocity: list, angle: float = 0.0) -> Bodies:
    """One video of bodies, all turned by the angle."""
    place = torch.tensor([position], dtype=torch.float64)
    turn = torch.full(place.shape[:2], angle, dtype=torch.float64)
    facing = torch.stack((turn.cos(), turn.sin()), dim=-1)
    speed = torch.tensor([velocity], dtype=torch.float64)
    return Bodies(place, speed, facing, turn, torch.zeros_like(turn))


def run(start: Bodies, shape: list[int], frames: tuple[int, ...] = EVERY_FRAME) -> Trajectory:
    kinds = torch.tensor([shape])
    return simulate(start, kinds, torch.ones_like(kinds, dtype=torch.bool), frames)


@pytest.fixture(scope="module")
def many() -> tuple[Tensor, Tensor, Trajectory]:
    """Shapes, real rows and every frame of 400 videos of the world."""
    start = draw_start(3, torch.arange(400))
    return start.shape, start.real, simulate(start.bodies, start.shape, start.real, EVERY_FRAME)


def energy(path: Trajectory, real: Tensor) -> Tensor:
    each = path.velocity.square().sum(-1) + INERTIA * path.spin.square()
    return (each * real[:, None]).sum(-1) / 2


def test_bodies_never_overlap(many) -> None:
    shape, real, path = many
    radius = torch.tensor(RADII, dtype=torch.float64)[shape]
    gap = (path.position[:, :, :, None] - path.position[:, :, None]).norm(dim=-1)
    reach = radius[:, :, None] + radius[:, None]
    n = shape.shape[-1]
    pair = real[:, :, None] & real[:, None] & ~torch.eye(n, dtype=torch.bool)
    depth = (reach[:, None] - gap).where(pair[:, None], torch.tensor(-1.0, dtype=torch.float64))
    assert depth.max() < 5e-4
    # The bound means something: bodies do touch.
    assert depth.max() > -1e-6


def test_energy_never_grows(many) -> None:
    _, real, path = many
    now = energy(path, real)
    assert (now[:, 1:] <= now[:, :-1] + 1e-12).all()
    assert (now[:, -1] < now[:, 0]).all()


def test_rest_until_hit(many) -> None:
    _, real, path = many
    resting = (path.velocity[:, 0] == 0).all(-1) & real
    met = path.collided.any(-1)
    still = resting[:, None] & ~met
    start = path.position[:, :1].expand_as(path.position)
    assert torch.equal(path.position[still], start[still])
    assert (path.velocity[still] == 0).all()
    assert (path.yaw.diff(dim=1)[still[:, 1:]] == 0).all()
    moved = resting & (path.velocity[:, -1] != 0).any(-1)
    assert moved.any()
    assert met[:, -1][moved].all()


@settings(max_examples=25, deadline=None)
@given(speed=st.floats(0.3, 3.0), offset=st.floats(-0.3, 0.3))
def test_collision_keeps_momentum(speed: float, offset: float) -> None:
    # Two cylinders about to touch, so that they hit in the first frame.
    x = -((0.4**2 - offset**2) ** 0.5)
    start = bodies([[x - 1e-12, offset], [0, 0]], [[speed, 0], [0, 0]])
    path = run(start, [CYLINDER, CYLINDER], (0, 1))
    assert path.collided[0, 1, 0, 1]
    before, slowed = path.velocity[0]
    # Give back what the ground took at the end of the frame.
    offset_lost, slope = MEASURED[CYLINDER]
    kept = slowed.norm(dim=-1, keepdim=True)
    after = slowed * (kept + offset_lost) / (1 - slope) / kept
    assert torch.allclose(after.sum(0), before.sum(0), atol=1e-9)
    normal = torch.tensor([-x, -offset], dtype=torch.float64) / 0.4
    approach = (before[0] - before[1]) @ normal
    bounce = RESTITUTION if approach > BOUNCE_SPEED else 0.0
    parting = ((after[1] - after[0]) @ normal).item()
    assert parting == pytest.approx(bounce * approach.item(), abs=1e-9)
    # Nothing is pushed sideways.
    tangent = torch.stack((-normal[1], normal[0]))
    assert torch.allclose(after @ tangent, before @ tangent, atol=1e-9)


def test_contact_is_at_its_exact_time() -> None:
    # 0.6 of the first frame's way lies before contact; the pair then moves on together.
    gap = 0.6 * 2.0 * STEP
    path = run(bodies([[-0.4 - gap, 0], [0, 0]], [[2.0, 0], [0, 0]]), [SPHERE, SPHERE], (0, 1))
    expected = torch.tensor([[-0.4, 0.0], [0.0, 0.0]], dtype=torch.float64)
    expected[:, 0] += 1.0 * 0.4 * STEP
    assert torch.allclose(path.position[0, 1], expected, atol=1e-12)


def test_a_crowd_does_not_overlap() -> None:
    # Six cubes and cylinders run into one point at once: far more contacts than in the world.
    angle = torch.arange(6, dtype=torch.float64) * (torch.pi / 3)
    out = torch.stack((angle.cos(), angle.sin()), dim=-1)
    start = bodies((out * 1.2).tolist(), (out * -2.9).tolist(), angle=0.3)
    shape = [CUBE, CYLINDER, CUBE, SPHERE, CUBE, SPHERE]
    path = run(start, shape)
    radius = torch.tensor(RADII, dtype=torch.float64)[torch.tensor(shape)]
    gap = (path.position[0, :, :, None] - path.position[0, :, None]).norm(dim=-1)
    depth = (radius[:, None] + radius - gap).masked_fill(torch.eye(6, dtype=torch.bool), -1)
    assert depth.max() < 5e-4
    assert path.collided[0, -1].sum() >= 10
    now = energy(path, torch.ones(1, 6, dtype=torch.bool))
    assert (now.diff(dim=1) <= 1e-12).all()


def test_glancing_miss_touches_nothing() -> None:
    path = run(bodies([[-1, 0.4001], [0, 0]], [[2.5, 0], [0, 0]]), [SPHERE, SPHERE])
    assert not path.collided.any()
    assert (path.position[0, :, 1] == 0).all()


def test_rows_that_are_not_real_touch_nothing() -> None:
    start = bodies([[-1, 0], [0, 0]], [[2.5, 0], [0, 0]])
    shape = torch.tensor([[SPHERE, SPHERE]])
    alone = simulate(start, shape, torch.tensor([[True, False]]), EVERY_FRAME)
    assert not alone.collided.any()
    assert alone.position[0, -1, 0, 0] > 1


def test_off_centre_hit_turns_only_cubes() -> None:
    # The sphere hits the cube's face beside its middle; pushed at its left, it turns clockwise.
    for shape, turns in ((CUBE, True), (CYLINDER, False)):
        path = run(bodies([[-1, 0.12], [0, 0]], [[2.5, 0], [0, 0]]), [SPHERE, shape])
        assert path.collided[0, -1, 0, 1]
        assert bool((path.spin[0, :, 1] < 0).any()) == turns
        assert (path.spin[0, :, 1] <= 0).all()
        assert path.spin[0, -1, 1] == 0
        assert bool(path.yaw[0, -1, 1] < -0.05) == turns


def test_facing_follows_the_turn(many) -> None:
    _, _, path = many
    exact = torch.stack((path.yaw.cos(), path.yaw.sin()), dim=-1)
    assert (path.facing - exact).abs().max() < 1e-5
    assert (path.yaw[:, -1] != path.yaw[:, 0]).any()


def speed_loss(path_velocity: np.ndarray, met: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Speeds and losses of one object a frame, away from collisions by more than 3 frames."""
    speed = np.linalg.norm(path_velocity[..., :2], axis=-1)
    near = np.convolve(met, np.ones(7), mode="same") > 0
    keep = ~near[:-1] & ~near[1:] & (speed[:-1] > 0.02) & (speed[1:] > 0.02)
    lost = speed[:-1] - speed[1:]
    keep &= np.abs(lost) < 0.1
    return speed[:-1][keep], lost[keep]


def losses_of_world(many, shape: int) -> tuple[np.ndarray, np.ndarray]:
    kinds, real, path = many
    met = path.collided.sum(-1).diff(dim=1, prepend=torch.zeros(len(kinds), 1, kinds.shape[1]))
    found = [
        speed_loss(path.velocity[b, :, i].numpy(), met[b, :, i].numpy())
        for b, i in (real & (kinds == shape)).nonzero().tolist()
    ]
    speed, lost = (np.concatenate(x) for x in zip(*found, strict=True))
    return speed, lost


@pytest.mark.parametrize("shape", [CUBE, SPHERE, CYLINDER])
def test_speed_loss_follows_the_measured_laws(many, shape: int) -> None:
    speed, lost = losses_of_world(many, shape)
    offset, slope = MEASURED[shape]
    # Speed by speed; slower spheres would speed up by their measured line.
    for low in np.arange(0.75, 2.75, 0.25):
        here = (speed >= low) & (speed < low + 0.25)
        law = offset + slope * speed[here]
        assert here.sum() > 50
        np.testing.assert_allclose(np.median(lost[here]), np.median(law), rtol=0.1)
    # And as a line through all, as the laws were measured.
    at = np.array([1.5, 2.0, 2.5, 3.0])
    line = np.polyval(np.polyfit(speed, lost, 1), at)
    np.testing.assert_allclose(line, offset + slope * at, rtol=0.1)


@pytest.mark.parametrize("shape", [CUBE, SPHERE, CYLINDER])
def test_speed_loss_of_real_annotations(many, shape: int) -> None:
    files = sorted(REAL_DATA.rglob("annotation_*.json"))
    if not files:
        pytest.skip("no real CLEVRER annotations in shared/data beside the repository")
    speeds, losses = [], []
    for file in files:
        video = json.loads(file.read_text())
        for kind in video["object_property"]:
            if SHAPES.index(kind["shape"]) != shape:
                continue
            me = kind["object_id"]
            velocity = np.array(
                [
                    next(o["velocity"] for o in f["objects"] if o["object_id"] == me)
                    for f in video["motion_trajectory"]
                ]
            )
            met = np.zeros(len(velocity))
            for hit in video["collision"]:
                met[hit["frame_id"]] += me in hit["object_ids"]
            speed, lost = speed_loss(velocity, met)
            speeds.append(speed)
            losses.append(lost)
    ours = np.polyfit(*losses_of_world(many, shape), 1)
    theirs = np.polyfit(np.concatenate(speeds), np.concatenate(losses), 1)
    at = np.array([1.0, 2.0, 3.0])
    np.testing.assert_allclose(np.polyval(ours, at), np.polyval(theirs, at), rtol=0.1)


def test_batch_and_order_do_not_matter(many) -> None:
    shape, real, path = many
    start = draw_start(3, torch.arange(400))
    order = torch.tensor([7, 399, 0, 128])
    some = Bodies(**{k: v[order] for k, v in vars(start.bodies).items()})
    again = simulate(some, shape[order], real[order], (0, 16, 127))
    for name, column in vars(again).items():
        assert torch.equal(column, getattr(path, name)[order][:, [0, 16, 127]]), name


def test_start_is_not_changed() -> None:
    start = draw_start(0, torch.arange(4))
    before = {k: v.clone() for k, v in vars(start.bodies).items()}
    simulate(start.bodies, start.shape, start.real, (0, 127))
    for name, column in vars(start.bodies).items():
        assert torch.equal(column, before[name]), name


@pytest.mark.gpu
def test_same_bits_on_the_gpu(many) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    _, _, path = many
    start = draw_start(3, torch.arange(400, device="cuda"))
    there = simulate(start.bodies, start.shape, start.real, EVERY_FRAME)
    for name, column in vars(there).items():
        assert torch.equal(column.cpu(), getattr(path, name)), name
