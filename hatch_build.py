"""Build hooks: add the trained weights and the compiled C library to the wheel.

They also adapt the README to the package index. With the library, the wheel is specific to a
platform. Without a compiler, or with SLOTMESH_NATIVE=0, it is for every platform, and the C is
compiled on first use. With SLOTMESH_NATIVE=1, a wheel without the library is an error.
"""

import os
import platform
import re
import runpy
import sysconfig
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

NATIVE = "slotmesh/ops/_native"
WEIGHTS = "slotmesh/weights"
SWITCH = "SLOTMESH_NATIVE"


class ReadmeHook(MetadataHookInterface):
    """The README for the package index, where the files of the repository are not available."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the readme."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        address = metadata.get("urls", {}).get("Repository")
        metadata["readme"] = {"content-type": "text/markdown", "text": for_index(text, address)}


def for_index(readme: str, address: str | None) -> str:
    """Make links and pictures absolute, or leave them out if there is no address.

    Args:
        readme: Markdown whose links are relative to the root of the repository.
        address: Address of the repository, such as ``https://host/owner/name``, or None.
    """
    image = re.compile(r"!\[([^\]]*)\]\((?!https?:)([^)]+)\)\n*")
    link = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:|#)([^)]+)\)")
    if address is None:
        return link.sub(r"\1", image.sub("", readme))
    address = address.rstrip("/")
    readme = image.sub(rf"![\1]({address}/raw/main/\2)\n\n", readme)
    return link.sub(rf"[\1]({address}/blob/main/\2)", readme)


class NativeBuildHook(BuildHookInterface):
    """The hook for wheels; an editable install compiles nothing."""

    folder: tempfile.TemporaryDirectory[str] | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the weights and the library to the wheel, and its platform to the tag."""
        wanted = os.environ.get(SWITCH)
        if version == "editable":
            return
        # Found by slotmesh.training.weights; a clone has them here already.
        build_data["force_include"][str(Path(self.root) / "checkpoints")] = WEIGHTS
        if wanted == "0":
            return
        # Run on its own, as importing slotmesh would need torch.
        names = runpy.run_path(str(Path(self.root) / "src" / NATIVE / "recipe.py"))
        recipe = SimpleNamespace(**names)
        self.folder = tempfile.TemporaryDirectory()
        try:
            tag, machine, flags = target(sysconfig.get_platform())
            compiler = recipe.find_compiler()
            library = recipe.build(compiler, Path(self.folder.name), machine, *flags)
        except (OSError, recipe.BuildError) as error:
            if wanted == "1":
                raise
            self.app.display_warning(
                f"This wheel has no compiled C, which is compiled on first use instead: {error}"
            )
            return
        name = recipe.hashed_name("shipped", library.read_bytes())
        build_data["force_include"][str(library)] = f"{NATIVE}/{name}"
        build_data["tag"] = f"py3-none-{tag}"
        build_data["pure_python"] = False

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was compiled."""
        if self.folder is not None:
            self.folder.cleanup()


def target(name: str) -> tuple[str, str, tuple[str, ...]]:
    """The platform's tag, its machine and what else the compiler needs to know.

    Args:
        name: Result of ``sysconfig.get_platform()``, such as ``linux-x86_64``.
    """
    if name.startswith("linux-"):
        return name.replace("-", "_"), name.removeprefix("linux-"), ()
    found = re.fullmatch(r"macosx-([\d.]+)-(\w+)", name)
    if found is None:
        raise OSError(f"no library is made for {name}")
    # Other tools for wheels respect it, too. Of several machines, use the present one.
    machines = re.findall(r"-arch (\S+)", os.environ.get("ARCHFLAGS", "")) or [found[2]]
    machine = machines[0] if machines in (["arm64"], ["x86_64"]) else platform.machine()
    # Tags have no minor version from 11 on, before which there was no aligned_alloc everywhere.
    version = os.environ.get("MACOSX_DEPLOYMENT_TARGET") or found[1]
    major = max(11, int(version.split(".")[0]))
    return f"macosx_{major}_0_{machine}", machine, (f"-mmacosx-version-min={major}.0",)
