"""The wheel holds the library, with its C compiled where possible; the sdist holds the rest too."""

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
import tyro

import slotmesh

from .processes import Script

ROOT = Path(__file__).resolve().parents[1]

pytest.importorskip("hatchling", reason="hatchling, which builds the wheel, is not installed")


def build(folder: Path, target: str = "wheel", **changes: str) -> tuple[Path, str]:
    """The file that was built, and what was printed meanwhile."""
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)],
        cwd=ROOT,
        env={**os.environ, **changes},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (built,) = folder.iterdir()
    return built, done.stdout + done.stderr


def libraries(wheel: Path) -> list[str]:
    return [x for x in zipfile.ZipFile(wheel).namelist() if x.endswith((".so", ".dylib", ".o"))]


@pytest.mark.skipif(
    not (sys.platform == "linux" or sys.platform == "darwin"), reason="only there it has one"
)
def test_wheel_with_c_needs_no_compiler(tmp_path: Path) -> None:
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.skip("no C compiler to build the wheel with")
    wheel, _ = build(tmp_path / "dist", SLOTMESH_NATIVE="1")
    tag = wheel.stem.split("-", 2)[2]
    assert tag.startswith("py3-none-")
    assert tag.removeprefix("py3-none-").startswith(sysconfig.get_platform().split("-")[0])
    held = set(zipfile.ZipFile(wheel).namelist())
    for folder in (ROOT / "checkpoints").iterdir():
        for file in ("model.safetensors", "config.json", "settings.json", "README.md"):
            assert f"slotmesh/weights/{folder.name}/{file}" in held
    (name,) = libraries(wheel)
    assert Path(name).parent.as_posix() == "slotmesh/ops/_native"

    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(tmp_path / "site")  # noqa: S202 (a wheel that was just built)
    code = """if True:
        import sys, torch, slotmesh
        from slotmesh.ops import backends, mesh
        assert slotmesh.__file__.startswith(sys.argv[1]), slotmesh.__file__
        plan = mesh(torch.ones(2, 2), backend="cpu").plan
        assert torch.equal(plan.round().sum(0), torch.ones(2))
        mesh(torch.ones(2, 2))
        found = backends()
        assert found.auto["cpu"] == "cpu"
        print(found.cpu.library, found.cpu.reason)
        from slotmesh.training import weights
        found = weights.find("multi-dsprites-sa-mesh")
        assert str(found).startswith(sys.argv[1]), found
        assert len(weights.names()) == 4
    """
    site = tmp_path / "site"
    environment = {**os.environ, "PYTHONPATH": str(site), "PATH": "", "CC": ""}
    environment.pop("SLOTMESH_NATIVE", None)
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", code, str(site)],
        env={**environment, "XDG_CACHE_HOME": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "shipped None\n", done.stderr
    assert not (tmp_path / "cache").exists()


def test_wheel_without_a_compiler_is_for_every_platform(tmp_path: Path) -> None:
    wheel, said = build(tmp_path, PATH="", CC="", SLOTMESH_NATIVE="")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert not libraries(wheel)
    names = zipfile.ZipFile(wheel).namelist()
    assert "slotmesh/ops/mesh.py" in names
    # What exists for the paper and for timing is no part of the library.
    tops = {name.split("/")[0] for name in names}
    assert tops == {"slotmesh", f"slotmesh-{slotmesh.__version__}.dist-info"}
    assert "no compiled C" in said
    assert "no C compiler was found" in said


def test_sdist_holds_paper_and_benchmarks(tmp_path: Path) -> None:
    sdist, _ = build(tmp_path, "sdist")
    with tarfile.open(sdist) as opened:
        names = {name.split("/", 1)[1] for name in opened.getnames() if "/" in name}
    for folder in ("src/slotmesh", "paper", "benchmarks"):
        for path in (ROOT / folder).rglob("*.py"):
            assert path.relative_to(ROOT).as_posix() in names
    assert any(name.startswith("benchmarks/results/") for name in names)


@pytest.mark.skipif(not shutil.which("git"), reason="no git")
def test_sdist_holds_all_of_the_clone(tmp_path: Path) -> None:
    """Tests read more than code: results, the Makefile, pages."""
    words = ["git", "ls-files", "-z"]
    listed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip(f"not a clone: {listed.stderr}")
    sdist, _ = build(tmp_path, "sdist")
    with tarfile.open(sdist) as opened:
        names = {name.split("/", 1)[1] for name in opened.getnames() if "/" in name}
    assert {name for name in listed.stdout.split("\0") if (ROOT / name).is_file()} <= names


@pytest.mark.parametrize("room", ["paper", "benchmarks"])
def test_paper_and_benchmarks_run_from_a_clone(room: str, tmp_path: Path) -> None:
    """With the library installed and nothing else on the path than the root of the clone."""
    home = Path(tyro.__file__).parents[1]
    if str(home) not in installed():
        pytest.skip(f"tyro is in {home}, where this interpreter does not look by itself")
    script = tmp_path / "run.py"
    script.write_text(
        f"import runpy, sys\nsys.path[:] = {[str(ROOT), str(ROOT / 'src'), *installed()]}\n"
        f"sys.argv = [{room!r}, '--help']\nrunpy.run_module({room!r}, run_name='__main__')\n"
    )
    done = Script(script, tmp_path / "log", cwd=ROOT)
    assert done.wait() == 0, done.output
    assert f"python -m {room}" in done.output


def installed() -> list[str]:
    """Where an interpreter looks that was told of nothing else."""
    homes = (sys.prefix, sys.base_prefix)
    return [path for path in sys.path if any(map(Path(path).is_relative_to, homes))]


def test_platforms(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the tag of the wheel says, and the compiler is told."""
    for name in ("ARCHFLAGS", "MACOSX_DEPLOYMENT_TARGET"):
        monkeypatch.delenv(name, raising=False)
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    monkeypatch.setattr(hook.platform, "machine", lambda: "arm64")
    oldest = ("-mmacosx-version-min=11.0",)
    assert hook.target("linux-x86_64") == ("linux_x86_64", "x86_64", ())
    assert hook.target("linux-aarch64") == ("linux_aarch64", "aarch64", ())
    assert hook.target("macosx-11.0-arm64") == ("macosx_11_0_arm64", "arm64", oldest)
    assert hook.target("macosx-10.9-x86_64") == ("macosx_11_0_x86_64", "x86_64", oldest)
    # A Python for both machines: the one at hand, unless told otherwise.
    assert hook.target("macosx-10.13-universal2") == ("macosx_11_0_arm64", "arm64", oldest)
    monkeypatch.setenv("ARCHFLAGS", "-arch x86_64")
    assert hook.target("macosx-10.13-universal2") == ("macosx_11_0_x86_64", "x86_64", oldest)
    monkeypatch.setenv("ARCHFLAGS", "-arch x86_64 -arch arm64")
    assert hook.target("macosx-14.2-universal2")[0] == "macosx_14_0_arm64"
    monkeypatch.setenv("MACOSX_DEPLOYMENT_TARGET", "13.3")
    assert hook.target("macosx-14.2-arm64")[0] == "macosx_13_0_arm64"
    with pytest.raises(OSError, match="win-amd64"):
        hook.target("win-amd64")
