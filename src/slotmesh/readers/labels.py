"""Names of the classes, in the order that readers and worlds share.

A column ``color`` of a table of objects holds indices into :data:`COLORS`, and so on. The datasets'
own orders differ from file to file; readers translate.
"""

from slotmesh.worlds.clevr import CLEVR_COLOURS, CLEVR_MATERIALS, CLEVR_SHAPES, CLEVR_SIZES
from slotmesh.worlds.clevrtex import CLEVRTEX_SIZES

__all__ = [
    "AUTHORS_COLORS",
    "AUTHORS_MATERIALS",
    "AUTHORS_SHAPES",
    "CLEVRTEX_MATERIALS",
    "CLEVRTEX_SHAPES",
    "CLEVRTEX_SIZES",
    "COLORS",
    "MATERIALS",
    "SHAPES",
    "SIZES",
]

COLORS = CLEVR_COLOURS
"""Colours of CLEVR and CLEVRER."""

MATERIALS = CLEVR_MATERIALS
"""Materials of CLEVR and CLEVRER."""

SHAPES = CLEVR_SHAPES
"""Shapes of CLEVR and CLEVRER."""

SIZES = CLEVR_SIZES
"""Sizes of CLEVR."""

CLEVRTEX_SHAPES = (*SHAPES, "monkey", "cone", "icosahedron", "teapot", "torus")
"""Shapes of ClevrTex; the last four occur in its out-of-distribution variant only. In the world, a
torus replaces the monkey."""

CLEVRTEX_MATERIALS = (
    "poliigonbricks01",
    "poliigonbricksflemishred001",
    "poliigonbrickspaintedwhite001",
    "poliigoncarpettwistnatural001",
    "poliigonchainmailcopperroundedthin001",
    "poliigoncitystreetasphaltgenericcracked002",
    "poliigoncitystreetroadasphalttwolaneworn001",
    "poliigoncliffjagged004",
    "poliigoncobblestonearches002",
    "poliigonconcretewall001",
    "poliigonfabricdenim003",
    "poliigonfabricfleece001",
    "poliigonfabricleatherbuffalorustic001",
    "poliigonfabricrope001",
    "poliigonfabricupholsterybrightanglepattern001",
    "poliigongroundclay002",
    "poliigongrounddirtforest014",
    "poliigongrounddirtrocky002",
    "poliigongroundforest003",
    "poliigongroundforest008",
    "poliigongroundforestmulch001",
    "poliigongroundforestroots001",
    "poliigongroundmoss001",
    "poliigongroundsnowpitted003",
    "poliigongroundtiretracks001",
    "poliigoninteriordesignrugstarrynight001",
    "poliigonmarble062",
    "poliigonmarble13",
    "poliigonmetalcorrodedheavy001",
    "poliigonmetalcorrugatedironsheet002",
    "poliigonmetaldesignerweavesteel002",
    "poliigonmetalpanelrectangular001",
    "poliigonmetalspottydiscoloration001",
    "poliigonmetalstainlesssteelbrushed",
    "poliigonplaster07",
    "poliigonplaster17",
    "poliigonroadcityworn001",
    "poliigonrooftilesterracotta004",
    "poliigonrustmixedonpaint012",
    "poliigonrustplain007",
    "poliigonsolarpanelspolycrystallinetypebframedclean001",
    "poliigonstonebricksbeige015",
    "poliigonstonemarblecalacatta004",
    "poliigonterrazzovenetianmattewhite001",
    "poliigontiles05",
    "poliigontilesmarblechevroncreamgrey001",
    "poliigontilesmarblesagegreenbrickbondhoned001",
    "poliigontilesonyxopaloblack001",
    "poliigontilesrectangularmirrorgray001",
    "poliigonwallmedieval003",
    "poliigonwaterdropletsmixedbubbled001",
    "poliigonwoodfinedark004",
    "poliigonwoodflooring044",
    "poliigonwoodflooring061",
    "poliigonwoodflooringmahoganyafricansanded001",
    "poliigonwoodflooringmerbaubrickbondnatural001",
    "poliigonwoodplanks028",
    "poliigonwoodplanksworn33",
    "poliigonwoodquarteredchiffon001",
    "whitemarble",
    "other",
)
"""Materials of ClevrTex as named in its files; "other" is any that is not among the sixty of the
first release (the out-of-distribution variant and the second version have more)."""

AUTHORS_COLORS = ("", "cyan", "gray", "brown", "green", "blue", "yellow", "red", "purple")
"""Codes of the colours in the MESH authors' CLEVRER files; 0 is padding."""

AUTHORS_MATERIALS = ("", "metal", "rubber")
"""Codes of the materials in the MESH authors' CLEVRER files; 0 is padding."""

AUTHORS_SHAPES = ("", "sphere", "cylinder", "cube")
"""Codes of the shapes in the MESH authors' CLEVRER files; 0 is padding."""
