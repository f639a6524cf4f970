"""Draw what SA and SA-MESH find in a scene into docs/images, for ``slots-do-not-bind.md``."""

from pathlib import Path

from PIL import Image

from slotmesh.training.runs import open_run
from slotmesh.training.weights import find
from slotmesh.worlds import MultiDSprites

# A scene that none of the weights were trained on.
SEED, SCENE = 2001, 4


def draw(images: Path) -> None:
    """Make the three pictures."""
    scene = MultiDSprites(seed=SEED).sample([SCENE]).image[0]
    for name, variant, merge in (
        ("binding-sa", "sa", None),
        ("binding-sa-mesh", "sa-mesh", None),
        ("binding-merged", "sa-mesh", 0.05),
    ):
        model = open_run(find(f"multi-dsprites-{variant}")).load_model()
        picture = model.segment(scene, merge=merge).picture()  # pyright: ignore
        # One scale for all: merged slots make a narrower picture.
        size = (round(picture.width / 2), round(picture.height / 2))
        picture.resize(size, Image.Resampling.BILINEAR).save(images / f"{name}.png", optimize=True)


if __name__ == "__main__":
    draw(Path(__file__).parent / "images")
