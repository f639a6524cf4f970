"""The colours of variants, slots and objects, everywhere."""

VARIANT_COLOURS = {
    "SA": "#7a869a",
    "SA-SH": "#2f7fb8",
    "SA-EMD": "#c7832b",
    "SA-MESH": "#b3245f",
}
"""Colours of the four variants that figures compare."""

MASK_COLOURS = (
    "#2b2f36",
    "#d1495b",
    "#2f7fb8",
    "#3a9d5d",
    "#e0a11b",
    "#8f5bb5",
    "#1fa6a6",
    "#b5651d",
    "#e07fb0",
    "#7a9c1e",
    "#5468c4",
)
"""The background, then one colour per object; they repeat after ten objects."""


def object_colour(label: int) -> str:
    """The colour of an object by its label, from 1; 0 is the background.

    Example:
        >>> from slotmesh.palette import object_colour
        >>> object_colour(1), object_colour(11)
        ('#d1495b', '#d1495b')
    """
    return (
        MASK_COLOURS[0] if label == 0 else MASK_COLOURS[1 + (label - 1) % (len(MASK_COLOURS) - 1)]
    )


def slot_colour(slot: int) -> tuple[int, int, int]:
    """The colour of a slot, from 0 to 255 each: that of object ``slot + 1``.

    Example:
        >>> from slotmesh.palette import slot_colour
        >>> slot_colour(0)
        (209, 73, 91)
    """
    code = object_colour(slot + 1)
    return int(code[1:3], 16), int(code[3:5], 16), int(code[5:7], 16)
