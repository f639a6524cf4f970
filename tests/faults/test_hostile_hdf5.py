"""HDF5 files made to lead a reader out of the file, load code, or fill the memory."""

import ctypes
import resource
import shutil
import struct
import subprocess
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from h5py import h5d, h5g, h5p, h5pl, h5s, h5t, h5z  # pyright: ignore

from slotmesh.readers import BadRecord, HDF5Reader, VectorReader
from slotmesh.readers.hdf5_writer import write_hdf5
from slotmesh.worlds import RandomObjects

from ..readers.test_hdf5 import authors, own

GIGABYTE = 2**20  # in the units of ru_maxrss


@pytest.fixture
def path(tmp_path: Path) -> Path:
    authors(tmp_path / "x.h5")
    authors(tmp_path / "secret.h5")
    return tmp_path / "x.h5"


def refused(path: Path, reason: str) -> None:
    """One line, that names the file and the dataset."""
    with pytest.raises(BadRecord, match=rf"x\.h5(, record \d+)?: .*{reason}") as caught:
        HDF5Reader(path).read(0)
    assert "\n" not in str(caught.value)


def replace(path: Path, name: str, value: Any) -> None:
    with h5py.File(path, "a") as file:
        del file[name]
        file[name] = value


@pytest.mark.parametrize("name", ["images", "masks", "num_objects"])
def test_external_links_are_not_followed(path: Path, name: str) -> None:
    replace(path, name, h5py.ExternalLink("secret.h5", name))
    refused(path, f"{name} is an external link to 'secret.h5', which is not followed")


def test_external_links_in_our_own_layout(path: Path) -> None:
    own(path)
    replace(path, "objects/color", h5py.ExternalLink("secret.h5", "num_objects"))
    refused(path, "objects/color is an external link")
    own(path)
    replace(path, "objects", h5py.ExternalLink("secret.h5", "/"))
    refused(path, "objects is an external link")


def test_soft_links_are_not_followed(path: Path) -> None:
    replace(path, "images", h5py.SoftLink("/images"))
    refused(path, "images is a soft link to '/images', which is not followed")
    replace(path, "images", h5py.SoftLink("/masks"))
    refused(path, "images is a soft link to '/masks'")


def test_virtual_datasets_are_not_read(path: Path) -> None:
    layout = h5py.VirtualLayout((6, 3, 8, 8), np.uint8)
    layout[:] = h5py.VirtualSource(path.with_name("secret.h5"), "images", (6, 3, 8, 8))
    with h5py.File(path, "a") as file:
        del file["images"]
        file.create_virtual_dataset("images", layout)
    refused(path, "images is a virtual dataset, whose data are in other files")


def test_external_storage_is_not_read(path: Path) -> None:
    secret = path.with_name("secret.txt")
    secret.write_bytes(bytes(6 * 3 * 8 * 8))
    with h5py.File(path, "a") as file:
        del file["images"]
        storage = [(str(secret), 0, h5py.h5f.UNLIMITED)]
        file.create_dataset("images", (6, 3, 8, 8), np.uint8, external=storage)
    refused(path, "images keeps its data in another file")


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    """A plugin that tells when it is loaded: a file of this name with ``.loaded`` appears."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler to make a plugin with")
    folder = tmp_path / "plugins"
    folder.mkdir()
    source = folder / "plugin.c"
    source.write_text(
        "#include <stdio.h>\n"
        "__attribute__((constructor)) static void go(void) {"
        f' FILE *f = fopen("{folder}.loaded", "w"); if (f) fclose(f); }}\n'
    )
    command = [compiler, "-shared", "-fPIC", "-o", folder / "libplugin.so", source]
    subprocess.run(command, check=True)
    return folder


@contextmanager
def offered(folder: Path) -> Iterator[Path]:
    """HDF5 looks for plugins in this folder; yields the file that appears when one is loaded."""
    h5pl.prepend(str(folder).encode())
    try:
        yield folder.with_suffix(".loaded")
    finally:
        for i in reversed(range(h5pl.size())):
            if h5pl.get(i) == str(folder).encode():
                h5pl.remove(i)


def with_filter(path: Path, code: int) -> None:
    with h5py.File(path, "a") as file:
        del file["images"]
        properties = h5p.create(h5p.DATASET_CREATE)
        properties.set_chunk((6, 3, 8, 8))
        properties.set_filter(code, h5z.FLAG_OPTIONAL, (1,))
        space = h5s.create_simple((6, 3, 8, 8))
        found = h5d.create(file.id, b"images", h5t.NATIVE_UINT8, space, properties)
        found.write_direct_chunk((0, 0, 0, 0), bytes(6 * 3 * 8 * 8))


def test_a_filter_that_is_a_plugin_is_not_loaded(path: Path, plugin: Path) -> None:
    with_filter(path, 40000)
    with offered(plugin) as loaded:
        refused(path, "images needs the filter 40000 of HDF5, expected none but gzip, lzf, shuffle")
        assert not loaded.exists()
        with h5py.File(path) as file, pytest.raises(OSError, match="plugin"):
            file["images"][0]  # pyright: ignore
        assert loaded.exists()


def test_a_filter_of_a_group_is_not_loaded(path: Path, plugin: Path) -> None:
    # h5py cannot make one: HDF5 is asked for it itself, with a filter that does nothing.
    libraries = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    names = [name for name in libraries if "libhdf5" in name and "_hl" not in name]
    if not names:
        pytest.skip("h5py does not say which library it uses")
    library = ctypes.CDLL(names[0])
    kept = ctypes.CFUNCTYPE(ctypes.c_size_t, *[ctypes.c_size_t] * 6)(lambda *a: a[3])
    # H5Z_class2_t: version, number, encoder, decoder, name, two functions that may be left out.
    numbers = struct.pack("iiIIQQQ", 1, 40000, 1, 1, 0, 0, 0)
    function = ctypes.cast(kept, ctypes.c_void_p).value or 0
    assert library.H5Zregister(ctypes.c_char_p(numbers + struct.pack("Q", function))) == 0
    own(path)
    with h5py.File(path, "a", libver="v110") as file:
        del file["objects"]
        properties = h5p.create(h5p.GROUP_CREATE)
        identity = ctypes.c_int64(properties.id)
        none = ctypes.c_size_t(0)
        assert library.H5Pset_filter(identity, 40000, 0, none, None) == 0
        assert library.H5Pset_link_phase_change(identity, 0, 0) == 0
        group = h5py.Group(h5g.create(file.id, b"objects", gcpl=properties))
        group["color"] = np.zeros((6, 4), np.int64)
    assert library.H5Zunregister(40000) == 0
    with offered(plugin) as loaded:
        folders = h5pl.size()
        refused(path, "its group 'objects' is damaged")
        assert not loaded.exists()
        assert h5pl.size() == folders  # put back for others
        with h5py.File(path) as file, pytest.raises(RuntimeError):
            list(file["objects"])  # pyright: ignore
        assert loaded.exists()


def grown(since: int) -> float:
    """Gigabytes by which the memory has been larger than before."""
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - since) / GIGABYTE


@pytest.mark.parametrize(
    ("shape", "chunks", "reason"),
    [
        ((10**12, 3, 8, 8), (1, 3, 8, 8), "images claims 1,000,000,000,000 rows, expected at most"),
        ((6, 3, 8, 10**8), (1, 3, 8, 8), "images has 2,400,000,000 bytes in a row"),
        ((6, 3, 8, 8), None, "masks claims"),
    ],
)
def test_absurd_shapes(path: Path, shape: Any, chunks: Any, reason: str) -> None:
    with h5py.File(path, "a") as file:
        name = "images" if chunks else "masks"
        wide = shape if chunks else (10**12, 10, 1, 8, 8)
        del file[name]
        file.create_dataset(name, wide, np.uint8, chunks=chunks or (1, 10, 1, 8, 8))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused(path, reason)
    assert grown(before) < 0.2


def test_chunks_of_gigabytes(path: Path) -> None:
    with h5py.File(path, "a") as file:
        del file["images"]
        shape = (2**23, 3, 8, 8)
        file.create_dataset("images", shape, np.uint8, chunks=(2**23, 3, 8, 8), compression="gzip")
    refused(path, "images has 1,610,612,736 bytes in a chunk, expected at most 268,435,456")


def bomb(size: int) -> bytes:
    """A zlib stream of zeros, ``size`` megabytes long when it is inflated."""
    packer = zlib.compressobj(9, wbits=-15)
    piece = packer.compress(bytes(2**20)) + packer.flush(zlib.Z_FULL_FLUSH)
    length = size * 2**20
    checksum = (length % 65521) << 16 | 1
    return b"\x78\xda" + piece * size + packer.flush() + checksum.to_bytes(4, "big")


@pytest.mark.parametrize(
    ("size", "reason"),
    [
        ((8, 8), "images stores .* bytes for a chunk of 1,152"),
        ((512, 1024), "images has a chunk that grows beyond its 9,437,184 bytes"),
    ],
)
def test_a_chunk_that_inflates_without_end(path: Path, size: Any, reason: str) -> None:
    assert zlib.decompress(bomb(3)) == bytes(3 * 2**20)
    with h5py.File(path, "a") as file:
        del file["images"], file["masks"]
        shape = (6, 3, *size)
        found = file.create_dataset("images", shape, np.uint8, chunks=shape, compression="gzip")
        found.id.write_direct_chunk((0, 0, 0, 0), bomb(3000))
        file.create_dataset("masks", (6, 10, 1, *size), np.uint8, chunks=(1, 1, 1, *size))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused(path, reason)
    assert grown(before) < 1


def test_compressed_twice(path: Path) -> None:
    with h5py.File(path, "a") as file:
        del file["images"]
        properties = h5p.create(h5p.DATASET_CREATE)
        properties.set_chunk((6, 3, 8, 8))
        properties.set_deflate(9)
        properties.set_deflate(9)
        space = h5s.create_simple((6, 3, 8, 8))
        h5d.create(file.id, b"images", h5t.NATIVE_UINT8, space, properties)
    refused(path, "images is compressed more than once")


@pytest.mark.parametrize("compression", ["gzip", "lzf", None])
@pytest.mark.parametrize("shuffle", [True, False])
def test_the_filters_of_h5py_are_read(path: Path, compression: str | None, shuffle: bool) -> None:
    content = authors(path)["images"]
    with h5py.File(path, "a") as file:
        del file["images"]
        options = {"compression": compression, "shuffle": shuffle, "fletcher32": True}
        file.create_dataset("images", data=content, chunks=(2, 3, 8, 8), **options)
    found = HDF5Reader(path, channels="rgb").sample(range(6)).image
    assert (found.numpy() == content).all()


def test_large_compressed_chunks_are_read_too(path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (2, 3, 600, 600), dtype=np.uint8)
    counts = np.zeros(2, int)
    authors(path, images=noise, masks=np.zeros((2, 10, 1, 600, 600), np.uint8), num_objects=counts)
    with h5py.File(path, "a") as file:
        del file["images"]
        # As stored, larger than what is left to HDF5 without a look.
        file.create_dataset("images", data=noise, chunks=noise.shape, compression="gzip")
    assert (HDF5Reader(path, channels="rgb").sample([0, 1]).image.numpy() == noise).all()


def test_vectors_that_are_only_claimed(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    sample = RandomObjects(n_background=3, dim=4).sample(range(4))
    write_hdf5(path, lambda start: [sample], n=4, source="random-objects", settings={})
    with h5py.File(path, "a") as file:
        del file.attrs["digest"], file["checksum"]
        file.attrs["format_version"] = 1
        for name in ("inputs", "targets", "index"):
            file[name].resize(10**7, axis=0)  # pyright: ignore
    with pytest.raises(BadRecord, match=r"x\.h5: it claims .* bytes of vectors, and has"):
        VectorReader(path)


@pytest.mark.parametrize(
    "column",
    [
        np.zeros((6, 4), dtype=[("a", "i4"), ("b", "f4")]),
        np.zeros((6, 4), dtype="S3"),
        np.zeros((6, 4), dtype=">i8"),
        np.zeros((6, 4), dtype="V4"),
        np.zeros((6, 4), dtype="c8"),
        "object references",
        "texts",
        "nothing",
    ],
    ids=str,
)
def test_columns_of_other_types(path: Path, column: Any) -> None:
    own(path)
    with h5py.File(path, "a") as file:
        del file["objects/color"]
        if not isinstance(column, str):
            file["objects/color"] = column
        elif column == "nothing":
            file["objects/color"] = h5py.Empty("f4")
        else:
            kind = h5py.ref_dtype if column != "texts" else h5py.string_dtype()
            file.create_dataset("objects/color", (6, 4), kind)
    refused(path, "objects/color has dtype .*, expected truth values, whole or real numbers")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ("{", "it is not JSON"),
        ("[1]", r"its settings are \[1\], expected a JSON object"),
        ("[" * 100_000, "its JSON is nested too deeply"),
        (np.zeros(4), "it is not JSON"),
        (h5py.Empty("f4"), "it is not JSON"),
    ],
    ids=["cut", "list", "deep", "numbers", "nothing"],
)
def test_odd_settings(path: Path, settings: Any, reason: str) -> None:
    own(path)
    with h5py.File(path, "a") as file:
        file.attrs["settings"] = settings
    refused(path, reason)


@pytest.mark.parametrize("name", ["format_version", "kind"])
@pytest.mark.parametrize("value", ["x", 7.5, np.zeros(3), h5py.Empty("f4")], ids=str)
def test_odd_attributes(path: Path, name: str, value: Any) -> None:
    own(path)
    with h5py.File(path, "a") as file:
        file.attrs[name] = value
    refused(path, f"its {name} is ")
