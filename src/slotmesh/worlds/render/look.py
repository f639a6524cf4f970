"""Parameters of the shading: lamps, ground and materials.

Fitted to 50 real CLEVR images by least squares, except the highlights and edges of metal, which
were set by eye.
"""

from dataclasses import dataclass

LAMPS = (
    (6.447, -2.905, 4.258),
    (-4.671, -4.014, 3.011),
    (-1.169, 2.646, 5.816),
    (11.66, -6.63, 25.82),
)
"""Positions of CLEVR's key, fill, back and area lamps before their jitter."""

Colour = tuple[float, float, float]


@dataclass(frozen=True)
class Look:
    """Strengths are linear light: a white surface at distance 1 from strength s reflects s."""

    strength: tuple[Colour, ...] = (
        (6.37, 5.87, 5.01),
        (1.67, 1.82, 2.33),
        (4.00, 3.97, 3.92),
        (76.48, 75.46, 74.44),
    )
    """Strength of the four lamps: red, green and blue."""
    aim: tuple[Colour, ...] = (
        (1.29, -0.15, -1.02),
        (-0.10, 0.19, 0.69),
        (-2.05, -1.05, 1.00),
        (-4.47, 1.13, 4.33),
    )
    """Points that the lamps face; their light falls off with the cosine to that direction."""
    radius: tuple[float, ...] = (0.63, 0.63, 0.63, 4.2)
    """Radius of the lamps, as discs: how soft the shadows are."""
    sky: float = 0.067
    """Ambient light from above."""
    bounce: float = 0.15
    """Light from the ground, on surfaces that face down."""
    ground: Colour = (0.6, 0.6, 0.6)
    """Albedo of CLEVR's plain ground."""
    lift: float = 0.066
    """Ambient light on the ground, less where objects stand close."""
    ball: float = 0.88
    """Radius of the ball that replaces an object in the ambient light, over its half-extent."""
    rubber_gloss: float = 0.072
    """Strength of rubber's sheen at grazing angles."""
    rubber_shine: float = 0.04
    """Strength of rubber's faint, broad highlight."""
    metal_mirror: float = 0.88
    """How much of its surroundings metal reflects."""
    metal_diffuse: float = 0.06
    """How much metal scatters."""
    metal_spot: float = 0.3
    """Brightness of the lamps' reflections in metal."""
    metal_rough: float = 0.035
    """How much metal blurs the lamps, in radians."""
    mirror_sky: float = 0.06
    """Brightness of the sky's reflection in metal."""


CLEVR_LOOK = Look()

CLEVRTEX_LOOK = Look(
    strength=tuple((1.9 * r, 1.9 * g, 1.9 * b) for r, g, b in CLEVR_LOOK.strength),
    sky=0.1,
    lift=0.06,
)
"""Brighter, with deeper shadows: textures are darker than plain paint."""
