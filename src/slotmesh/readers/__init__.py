"""Readers of the real datasets and of folders of images or videos; batches are like a world's.

Labels are indices into the tuples of :mod:`slotmesh.readers.labels`, whose order all readers and
worlds share: colours gray, red, blue, green, brown, purple, cyan, yellow; materials rubber,
metal; shapes cube, sphere, cylinder; sizes small, large.
"""

from slotmesh.readers.clevr import ClevrReader
from slotmesh.readers.clevrer import ClevrerReader
from slotmesh.readers.clevrtex import ClevrTexReader
from slotmesh.readers.errors import BadRecord
from slotmesh.readers.hdf5 import HDF5Reader
from slotmesh.readers.images import ImageReader
from slotmesh.readers.multi_dsprites import MultiDSpritesReader
from slotmesh.readers.reader import Reader
from slotmesh.readers.registry import READERS, open_reader, reader_options, register_reader
from slotmesh.readers.vectors import VectorReader
from slotmesh.readers.videos import VideoReader

__all__ = [
    "READERS",
    "BadRecord",
    "ClevrReader",
    "ClevrTexReader",
    "ClevrerReader",
    "HDF5Reader",
    "ImageReader",
    "MultiDSpritesReader",
    "Reader",
    "VectorReader",
    "VideoReader",
    "open_reader",
    "reader_options",
    "register_reader",
]
