"""Rows of Table 2 that go beyond the paper."""

from dataclasses import replace

from paper.tables import command


def test_rows_beyond_the_paper_differ_in_their_variants_alone() -> None:
    kind = command.KINDS["table2"]
    first, *others = (
        command.settings_of(kind(), f"{variant}-beyond", 0)
        for variant in ("SA-MESH", "SA", "SA-SH", "SA-EMD")
    )
    for other in others:
        same = {"variant": first.variant, "transport": first.transport, "out": first.out}
        assert replace(other, **same) == first
    assert (first.steps, first.val_every) == (200_000, 10_000)
    assert first.optim.factor(0, first.steps) < 1e-3
    assert first.optim.factor(first.steps - 1, first.steps) < 1e-9
