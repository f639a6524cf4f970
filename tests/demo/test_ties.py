"""The paper's tie examples."""

import pytest
import torch

from slotmesh.demo.ties import VARIANTS, paper_ties, transport_tie


@pytest.mark.parametrize("tie", paper_ties(), ids=lambda tie: tie.title)
def test_only_emd_and_mesh_break_ties(tie) -> None:
    result = transport_tie(tie)
    assert tuple(result.plans) == VARIANTS
    assert [result.broken(name) for name in VARIANTS] == [False, False, True, True]
    for name in ("SA", "SA-SH"):
        assert torch.allclose(result.plans[name][0], result.plans[name][1])
        assert result.entropies[name] > 1.3
    for name in ("SA-EMD", "SA-MESH"):
        assert result.entropies[name] < 0.05


def test_y_keeps_its_input() -> None:
    result = transport_tie(paper_ties()[1])
    for name in VARIANTS:
        assert result.plans[name][2, 2] > 0.99
