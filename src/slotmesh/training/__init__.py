"""Experiments: their tasks and settings, training, evaluation and reports.

Training is :mod:`slotmesh.training.loop`, on Lightning Fabric, which takes seconds to load: nothing
imports it before training starts.
"""
