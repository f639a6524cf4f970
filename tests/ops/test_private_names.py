"""Private names of torch and Triton that are used: all in one file, each with a fallback."""

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

import slotmesh
from slotmesh import mesh
from slotmesh.ops import _private

SOURCE = Path(slotmesh.__file__).parent


@pytest.mark.parametrize("name", _private.NAMES)
def test_this_version_still_has(name: str) -> None:
    """A failure names what is gone; slotmesh then uses the fallback."""
    if name.startswith("triton"):
        pytest.importorskip("triton", reason="triton is not installed")
    assert _private.find(name, None) is not None


def test_fallback_of_a_name_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = "torch._C._functorch.gone", "torch.gone.gone"
    monkeypatch.setattr(_private, "NAMES", gone)
    assert [_private.find(name, 3) for name in gone] == [3, 3]


def test_without_them_all_is_computed_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    from slotmesh.ops import _cpu, checks

    def run() -> tuple[Tensor, Tensor]:
        cost = torch.rand(3, 5, generator=torch.Generator().manual_seed(0)).requires_grad_()
        plan = mesh(cost, generator=torch.Generator().manual_seed(0)).plan
        return plan.detach(), *torch.autograd.grad(plan.square().sum(), cost)

    expected = run()
    for module in (_cpu, checks):
        monkeypatch.setattr(module, "transform", lambda: None)
    monkeypatch.setattr(_cpu, "is_batched_gradient", lambda _: False)
    for x, y in zip(run(), expected, strict=True):
        assert torch.equal(x, y)


def test_reductions_of_the_kernels_without_tritons_own(device: str) -> None:
    """The fallbacks give what Triton's functions give."""
    from ._reductions import add_kernel, larger_kernel

    x = torch.tensor([3.0, -1.0, 2.5, 0.25], device=device)
    for kernel, expected in ((add_kernel, 4.75), (larger_kernel, 3.0)):
        out = torch.zeros(2, device=device)
        kernel[(1,)](x, out, 4)
        assert out.tolist() == [expected, expected]


def test_no_private_name_elsewhere() -> None:
    private = re.compile(r"(?<!\")\b(torch|tl|triton|forward_ad)(\.\w+)*\._(?!_)\w+")
    for room in ("ops", "nn", "models"):
        for path in (SOURCE / room).rglob("*.py"):
            if path.name != "_private.py":
                found = private.search(path.read_text(encoding="utf-8"))
                assert found is None, f"{path.relative_to(SOURCE)} uses {found and found.group()}"
