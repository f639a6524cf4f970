"""The ray caster: against slow references, and against what geometry says."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from slotmesh.worlds.clevrtex import ClevrTex
from slotmesh.worlds.render import CLEVR_LENS, METAL, RUBBER, Lens, Scene, render, yaw_matrix
from slotmesh.worlds.render.camera import project
from slotmesh.worlds.render.look import CLEVR_LOOK, LAMPS
from slotmesh.worlds.render.patterns import PATTERNS
from slotmesh.worlds.render.shapes import BEVEL, RING, ROUNDING, TUBE
from slotmesh.worlds.render.textures import TEXTURES

DARK = ((0.0, 0.0, 0.0),)
# Shadows of the back lamp fall towards the camera.
BACK_ONLY = replace(
    CLEVR_LOOK,
    strength=(*DARK * 2, CLEVR_LOOK.strength[2], *DARK),
    sky=0.0,
    bounce=0.0,
    lift=0.0,
)


def make_scene(objects: list[dict], **settings: torch.Tensor) -> Scene:
    """One scene from plain descriptions."""
    n = len(objects)

    def column(name: str, default: object) -> list:
        return [o.get(name, default) for o in objects]

    turn = torch.tensor(column("turn", 0.0), dtype=torch.float64)
    scene = Scene(
        position=torch.tensor([column("at", None)], dtype=torch.float64),
        rotation=yaw_matrix(turn.cos(), turn.sin())[None],
        size=torch.tensor([column("size", 0.7)], dtype=torch.float64),
        shape=torch.tensor([column("shape", 1)]),
        material=torch.tensor([column("material", RUBBER)]),
        colour=torch.tensor([column("colour", (0.5, 0.5, 0.5))]),
        present=torch.ones(1, n, dtype=torch.bool),
        camera=torch.tensor([[7.48, -6.5, 5.34]], dtype=torch.float64),
        lamps=torch.tensor([LAMPS], dtype=torch.float64),
    )
    return replace(scene, **settings)


def random_scene(seed: int) -> Scene:
    """Five objects of all shapes, one of them tilted in space, anywhere near the origin."""
    rng = np.random.default_rng(seed)
    objects = [
        {
            "at": (*rng.uniform(-2.5, 2.5, 2), rng.uniform(0.4, 1.0)),
            "size": rng.uniform(0.3, 0.9),
            "shape": k % 4,
            "turn": rng.uniform(0, 6),
        }
        for k in range(5)
    ]
    scene = make_scene(objects)
    tilted = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    scene.rotation[0, 0] = torch.from_numpy(tilted * np.sign(np.linalg.det(tilted)))
    return scene


def reference_mask(scene: Scene, height: int, width: int, lens: Lens) -> tuple[np.ndarray, ...]:
    """Mask by numpy with other methods (roots of polynomials, fine marching), and how doubtful.

    The second array is the gap in depth between the first and second object, or the distance by
    which the ray clears the closest object, whichever is smaller: small where rounding decides.
    """
    eye = scene.camera[0].numpy()
    forward = -eye / np.linalg.norm(eye)
    right = np.cross(forward, [0, 0, 1])
    right /= np.linalg.norm(right)
    down = np.cross(forward, right)
    u = ((np.arange(width) + 0.5) / width * 2 - 1) * lens.tan_x
    v = ((np.arange(height) + 0.5) / height * 2 - 1) * lens.tan_y
    d = forward + u[None, :, None] * right + v[:, None, None] * down
    depths, gaps = [], []
    for k in range(scene.present.shape[1]):
        turn, size = scene.rotation[0, k].numpy(), float(scene.size[0, k])
        o = turn.T @ (eye - scene.position[0, k].numpy()) / size
        ray = d @ turn / size
        # March along the part of the ray within a ball around the object.
        a, b, c = (ray**2).sum(-1), ray @ o, o @ o - 3.01
        root = np.sqrt(np.maximum(b * b - a * c, 0))
        t = ((-b - root) / a)[..., None] + (2 * root / a)[..., None] * np.linspace(0, 1, 1500)
        p = o + t[..., None] * ray[:, :, None]
        distance = SIGNED[int(scene.shape[0, k])](p)
        inside = (distance < 0) & (b * b > a * c)[..., None]
        first = np.take_along_axis(t, inside.argmax(-1)[..., None], -1)[..., 0]
        depths.append(np.where(inside.any(-1) & (first > 0), first, np.inf))
        gaps.append(np.abs(distance.min(-1)) * size)
    order = np.sort(np.stack([*depths, np.full_like(depths[0], np.inf)]), axis=0)
    nearest = np.stack(depths).argmin(0) + 1
    mask = np.where(np.isinf(order[0]), 0, nearest)
    with np.errstate(invalid="ignore"):
        between = np.where(np.isinf(order[1]), np.inf, order[1] - order[0])
    return mask, np.minimum(np.stack(gaps).min(0), between)


def _rounded(q: np.ndarray, radius: float) -> np.ndarray:
    outside = np.linalg.norm(np.maximum(q, 0), axis=-1)
    return outside + np.minimum(q.max(-1), 0) - radius


SIGNED = {
    0: lambda p: _rounded(np.abs(p) - (1 - ROUNDING), ROUNDING),
    1: lambda p: np.linalg.norm(p, axis=-1) - 1,
    2: lambda p: _rounded(
        np.stack([np.hypot(p[..., 0], p[..., 1]), np.abs(p[..., 2])], -1) - (1 - BEVEL), BEVEL
    ),
    3: lambda p: np.hypot(np.hypot(p[..., 0], p[..., 2]) - RING, p[..., 1]) - TUBE,
}


@pytest.mark.parametrize("seed", range(3))
def test_mask_agrees_with_a_slow_reference(seed):
    scene = random_scene(seed)
    _, mask = render(scene, (36, 52))
    expected, doubt = reference_mask(scene, 36, 52, CLEVR_LENS)
    wrong = mask[0].numpy() != expected
    assert len(np.unique(expected)) >= 5
    assert not wrong[doubt > 0.02].any()
    assert wrong.sum() <= 2


def test_torus_agrees_with_the_roots_of_its_quartic():
    scene = make_scene([{"at": (0.3, -0.2, 0.9), "size": 0.9, "shape": 3, "turn": 0.4}])
    mask = render(scene, (40, 60))[1][0].numpy()
    eye, turn = scene.camera[0].numpy(), scene.rotation[0, 0].numpy()
    forward = -eye / np.linalg.norm(eye)
    right = np.cross(forward, [0, 0, 1]) / np.linalg.norm(np.cross(forward, [0, 0, 1]))
    down = np.cross(forward, right)
    o = turn.T @ (eye - scene.position[0, 0].numpy()) / 0.9
    expected = np.zeros_like(mask)
    for i, j in np.ndindex(40, 60):
        u, v = ((j + 0.5) / 30 - 1) * CLEVR_LENS.tan_x, ((i + 0.5) / 20 - 1) * CLEVR_LENS.tan_y
        d = turn.T @ (forward + u * right + v * down) / 0.9
        # (|p|^2 + R^2 - r^2)^2 = 4 R^2 (x^2 + z^2) along the ray.
        square = np.array([d @ d, 2 * o @ d, o @ o + RING**2 - TUBE**2])
        flat = np.array(
            [d[0] ** 2 + d[2] ** 2, 2 * (o[0] * d[0] + o[2] * d[2]), o[0] ** 2 + o[2] ** 2]
        )
        roots = np.roots(np.polysub(np.polymul(square, square), 4 * RING**2 * flat))
        expected[i, j] = (np.abs(roots.imag) < 1e-9).any()
    assert expected.sum() > 60
    assert (mask != expected).sum() <= 2


def test_a_hole_is_seen_through_the_torus():
    away = torch.tensor([[0.0, -9.0, 1.0]], dtype=torch.float64)
    target = torch.tensor([[0.0, 0.0, 0.9]], dtype=torch.float64)
    scene = make_scene([{"at": (0, 0, 0.9), "size": 0.9, "shape": 3}], camera=away, target=target)
    mask = render(scene, (65, 65))[1][0]
    assert mask[32, 32] == 0
    assert mask[32, :32].max() == 1
    assert mask[32, 33:].max() == 1


def test_centre_of_a_sphere_is_where_it_projects():
    scene = make_scene([{"at": (1.0, -1.5, 0.35), "size": 0.35}])
    mask = render(scene, (320, 480))[1][0]
    rows, columns = torch.nonzero(mask, as_tuple=True)
    x, y, depth = project(scene, scene.position)[0, 0]
    assert columns.double().mean() + 0.5 == pytest.approx(240 + 525 * x.item(), abs=0.5)
    assert rows.double().mean() + 0.5 == pytest.approx(160 + 525 * y.item(), abs=0.5)
    assert mask.sum() == pytest.approx(np.pi * (525 * 0.35 / depth.item()) ** 2, rel=0.02)


def ground_values(scene: Scene, points: list[tuple[float, float]], look) -> torch.Tensor:
    """Linear-ish grey of the image at places on the ground."""
    image, mask = render(scene, (320, 480), look=look)
    at = torch.tensor([[(x, y, 0.0) for x, y in points]], dtype=torch.float64)
    seen = project(scene, at)[0]
    columns = (240 + 525 * seen[:, 0]).long()
    rows = (160 + 525 * seen[:, 1]).long()
    assert (mask[0, rows, columns] == 0).all()
    return image[0, 1, rows, columns].double()


def shadow_of(at: tuple[float, float, float]) -> np.ndarray:
    """Where the line from the back lamp over a point meets the ground."""
    lamp = np.array(LAMPS[2])
    return (lamp + (np.array(at) - lamp) * lamp[2] / (lamp[2] - at[2]))[:2]


@pytest.mark.parametrize("shape", range(3))
def test_a_shadow_lies_where_the_lamp_casts_it(shape):
    scene = make_scene([{"at": (0, 0, 0.7), "shape": shape}])
    empty = replace(scene, present=torch.zeros(1, 1, dtype=torch.bool))
    middle = shadow_of((0.0, 0.0, 1.2))
    across = 2.5 * np.array([-middle[1], middle[0]]) / np.linalg.norm(middle)
    points = [tuple(p) for p in (middle, middle + across, middle - across, 4 * middle)]
    with_it = ground_values(scene, points, BACK_ONLY)
    without = ground_values(empty, points, BACK_ONLY)
    assert (without > 20).all()
    assert with_it[0] < 0.4 * without[0]
    assert torch.equal(with_it[1:], without[1:])


def test_shadows_are_softer_far_from_the_object():
    empty = make_scene([{"at": (0, 0, 0.7)}], present=torch.zeros(1, 1, dtype=torch.bool))
    across = np.array([-shadow_of((0, 0, 1))[1], shadow_of((0, 0, 1))[0]])
    across /= np.linalg.norm(across)
    widths = []
    for height in (0.5, 2.5):
        # The same ball, once near the ground and once high above it.
        scene = make_scene([{"at": (0, 0, height), "size": 0.5}])
        middle = shadow_of((0.0, 0.0, height))
        points = [tuple(middle + across * s) for s in np.linspace(0.2, 2.2, 81)]
        share = ground_values(scene, points, BACK_ONLY) / ground_values(empty, points, BACK_ONLY)
        assert share[-1] == 1
        widths.append(((share > 0.2) & (share < 0.95)).sum())
    assert widths[1] > 1.5 * widths[0]


def test_metal_mirrors_and_rubber_does_not():
    def ball_beside(colour: tuple[float, float, float], material: int) -> torch.Tensor:
        scene = make_scene(
            [
                {"at": (0, 0, 0.7), "material": material, "colour": (0.8, 0.8, 0.8)},
                {"at": (1.9, 0.5, 0.7), "colour": colour},
            ]
        )
        image, mask = render(scene, 224)
        return image[0][:, mask[0] == 1].float()

    red, blue = (0.9, 0.05, 0.05), (0.05, 0.05, 0.9)
    metal = (ball_beside(red, METAL) - ball_beside(blue, METAL)).abs()
    rubber = (ball_beside(red, RUBBER) - ball_beside(blue, RUBBER)).abs()
    # Pixels at the border of two objects mix their colours in any case.
    changed_metal, changed_rubber = (metal.amax(0) > 25).sum(), (rubber.amax(0) > 25).sum()
    assert changed_metal > 20
    assert changed_rubber < 0.2 * changed_metal
    assert (ball_beside(red, METAL) - ball_beside(red, RUBBER)).abs().mean() > 8


def test_metal_has_sharper_highlights():
    def spread(material: int) -> float:
        image, mask = render(make_scene([{"at": (0, 0, 0.7), "material": material}]), 128)
        grey = image[0].float().mean(0)[mask[0] == 1]
        return (grey.max() - grey.median()).item()

    assert spread(METAL) > 1.5 * spread(RUBBER)


def test_a_batch_is_drawn_as_its_scenes_are():
    scenes = [random_scene(s) for s in range(3)]
    together = Scene(*(torch.cat([getattr(s, f) for s in scenes]) for f in SCENE_FIELDS))
    images, masks = render(together, (50, 70))
    for i, scene in enumerate(scenes):
        image, mask = render(scene, (50, 70))
        assert torch.equal(mask[0], masks[i])
        assert (image[0].int() - images[i].int()).abs().max() <= 1


SCENE_FIELDS = (
    "position",
    "rotation",
    "size",
    "shape",
    "material",
    "colour",
    "present",
    "camera",
    "lamps",
)


def test_absent_and_hidden_objects_leave_no_trace():
    scene = make_scene([{"at": (0, 0, 0.7)}, {"at": (30.0, -25.0, 0.7)}, {"at": (1.5, 1.5, 0.7)}])
    scene.present[0, 2] = False
    image, mask = render(scene, 64)
    alone, alone_mask = render(make_scene([{"at": (0, 0, 0.7)}]), 64)
    assert torch.equal(mask, alone_mask)
    assert torch.equal(image, alone)


def test_of_two_objects_in_one_place_the_first_is_seen():
    scene = random_scene(3)
    twice = {
        name: torch.cat([value, value], dim=1)
        for name, value in vars(scene).items()
        if name in ("position", "rotation", "size", "shape", "material", "colour", "present")
    }
    assert torch.equal(render(replace(scene, **twice), 48)[1], render(scene, 48)[1])


def test_an_object_across_the_camera_plane_is_drawn():
    scene = make_scene([{"at": (7.2, -6.0, 5.2), "size": 0.3, "shape": 0, "turn": 0.7}])
    scene = replace(scene, rotation=random_scene(0).rotation[:, :1])
    mask = render(scene, 32)[1][0].numpy()
    expected, doubt = reference_mask(scene, 32, 32, CLEVR_LENS)
    assert 0 < expected.sum() < expected.size
    assert (mask == expected)[doubt > 0.01].all()


def test_threads_change_nothing():
    scenes = [random_scene(s % 3) for s in range(10)]
    together = Scene(*(torch.cat([getattr(s, f) for s in scenes]) for f in SCENE_FIELDS))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = render(together, 40)
        torch.set_num_threads(3)
        spread_out = render(together, 40)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert torch.equal(alone[0], spread_out[0])
    assert torch.equal(alone[1], spread_out[1])


def test_size_must_be_positive():
    with pytest.raises(ValueError, match="size is 0"):
        render(random_scene(0), 0)


def test_every_texture_is_its_own():
    n = len(TEXTURES)
    assert n >= 60
    assert len({t.name for t in TEXTURES}) == n
    assert {t.pattern for t in TEXTURES} == set(PATTERNS)
    scene = make_scene([{"at": (0, 0, 0.9), "size": 0.9, "shape": 0, "turn": 0.4}])
    fields = {
        f: getattr(scene, f).repeat(n, *[1] * (getattr(scene, f).ndim - 1)) for f in SCENE_FIELDS
    }
    fields["material"] = torch.arange(n)[:, None] + 2
    images, masks = render(
        Scene(**fields, ground=torch.full((n,), 2)), 48, lens=Lens.of(350, 320, 240, (90, 90))
    )
    inside = masks[0] == 1
    pixels = images[:, :, inside].double().flatten(1)
    apart = torch.cdist(pixels, pixels, p=1) / pixels.shape[1]
    apart.fill_diagonal_(255)
    assert apart.min() > 4
    # Texture, not plain paint: the face that turns to the camera varies.
    assert (images[:, 1, inside].double().std(1) > 2).all()


def test_bumps_change_the_light():
    world = ClevrTex(seed=0)
    scene, _ = world.scenes(torch.arange(2))
    image, _ = render(scene, 64, lens=world.lens)
    plain, _ = render(
        replace(scene, ground=torch.full_like(scene.ground, RUBBER)), 64, lens=world.lens
    )
    assert (image.int() - plain.int()).abs().float().mean() > 5


def check_devices(
    scene: Scene,
    lens: Lens = CLEVR_LENS,
    size: int = 64,
    compile: bool = False,  # noqa: A002
) -> None:
    """The CPU's picture, and that of the GPU."""
    here = render(scene, size, lens=lens)
    there = render(scene.to("cuda"), size, lens=lens, compile=compile)
    assert torch.equal(here[1], there[1].cpu())
    off = (here[0].int() - there[0].cpu().int()).abs()
    assert (off > 1).float().mean() < 1e-3


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_devices_agree():
    world = ClevrTex(seed=1)
    textured, _ = world.scenes(torch.arange(4))
    check_devices(random_scene(0))
    check_devices(replace(random_scene(1), material=torch.full((1, 5), METAL)))
    check_devices(textured, world.lens)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_compiled_shading_agrees():
    balls = [{"at": (0, 0, 0.7), "material": METAL}, {"at": (1.9, 0.5, 0.7)}]
    check_devices(make_scene(balls), size=64, compile=True)
    world = ClevrTex(seed=1)
    textured, _ = world.scenes(torch.arange(4))
    check_devices(textured, world.lens, compile=True)
