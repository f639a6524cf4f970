"""The tables that are trained run by run: their rows, and for how long."""

import re
from dataclasses import dataclass
from functools import cached_property

from slotmesh.training.published import Row, published_rows

WEIGHTS = ("SA", "SA-MESH")
"""Rows of a table whose weights are kept, of the first seed."""


@dataclass(frozen=True)
class Table:
    """What one command trains."""

    name: str
    """Of the command, and of the folder with its results."""
    paper: str
    """What it is called in :data:`~slotmesh.training.published.TABLES`."""
    about: str
    """In one line, for the command's help."""
    steps: int | None = None
    """Training steps of every row; those of the ``paper`` preset by default."""
    val_every: int = 5_000
    """Steps between two validations."""
    more: tuple[Row, ...] = ()
    """Rows that the paper does not have. They are trained only where they are asked for."""

    @cached_property
    def rows(self) -> dict[str, Row]:
        """All rows that can be trained, by the name that commands and files have for them.

        Example:
            >>> from paper.trained.tables import BY_NAME
            >>> list(BY_NAME["table2"].rows)
            ['SA', 'SA-SH', 'SA-EMD', 'SA-MESH']
            >>> list(BY_NAME["table5"].rows)[:2]
            ['clevrer-s-SA', 'clevrer-s-SA-fixed-noise']
        """
        found = [
            row for row in published_rows() if row.table == self.paper and row.variant is not None
        ]
        found += self.more
        several = len({row.task for row in found}) > 1
        return {(f"{row.task}-" if several else "") + _slug(row.label): row for row in found}

    def chosen(self, words: tuple[str, ...]) -> list[str]:
        """The names of the rows that are asked for; all of the paper where nothing is.

        Raises:
            ValueError: If there is no such row.
        """
        if not words:
            return [name for name, row in self.rows.items() if row not in self.more]
        found: list[str] = []
        for word in words:
            # Where a table has several tasks, the same row of each.
            same = [name for name, row in self.rows.items() if name in (word, f"{row.task}-{word}")]
            if not same:
                raise ValueError(
                    f"--variants has {word!r}, but the rows of {self.name} are "
                    f"{', '.join(self.rows)}."
                )
            found += [name for name in same if name not in found]
        return found

    def keeps_weights(self, name: str, seed: int) -> bool:
        """Whether the weights of a run are exported."""
        row = self.rows[name]
        return row.label.rstrip("†") in WEIGHTS and not row.changes and seed == 0


def _slug(label: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", label).strip("-")


def _other_gradient(label: str, **changes: str) -> Row:
    how = {"grad": "straight_through", **changes}
    named = {f"transport.{name}": value for name, value in how.items()}
    return Row("Table 3", label, "multi-dsprites", "SA-MESH", named)


TABLES = (
    Table("table2", "Table 2", "CLEVR properties (Table 2)", val_every=2_730),
    Table(
        "table2-appendix",
        "Table 2, appendix",
        "CLEVR properties without implicit differentiation (Table 2 of the appendix)",
        val_every=2_730,
    ),
    Table(
        "table3",
        "Table 3",
        "object discovery on Multi-dSprites (Table 3)",
        steps=75_000,
        more=(
            _other_gradient("SA-MESH-reuse", potentials="reuse"),
            _other_gradient("SA-MESH-detach"),
        ),
    ),
    Table("table4", "Table 4", "object discovery on ClevrTex (Table 4)", steps=75_000),
    Table("table5", "Table 5", "object discovery on CLEVRER-S and -L (Table 5)", steps=75_000),
    Table(
        "section-5-4",
        "Section 5.4",
        "SA-MESH with a smaller learning rate of MESH (section 5.4)",
        steps=75_000,
    ),
    Table(
        "ablations",
        "Appendix, ablations",
        "SA with 5 iterations and with learned slots (appendix)",
        steps=75_000,
    ),
    Table("objective", "Appendix, objective", "the learned objective (appendix)"),
)
"""In the order of the paper."""
BY_NAME = {table.name: table for table in TABLES}
