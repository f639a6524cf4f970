"""``slotmesh reproduce multi-dsprites``: object discovery on the world, trained, tested, kept."""

from slotmesh.experiments.reproduce.multi_dsprites.command import MultiDSprites, run_multi_dsprites

__all__ = ["MultiDSprites", "run_multi_dsprites"]
