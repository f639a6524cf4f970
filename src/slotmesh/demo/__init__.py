"""``slotmesh demo``: MESH breaks a tie, and a model with it learns what others cannot."""

from slotmesh.demo.command import Demo, draw_ties, run_demo

__all__ = ["Demo", "draw_ties", "run_demo"]
