"""The tables that are trained one run at a time: their rows and numbers of steps."""

import re
from dataclasses import dataclass
from functools import cached_property

from slotmesh.training.published import Row, published_rows

WEIGHTS = ("SA", "SA-MESH")
"""Rows whose weights are kept, for seed 0."""


@dataclass(frozen=True)
class TrainedTable:
    """A table of the paper whose rows one command trains."""

    name: str
    """Name of the command and of the folder with the results."""
    paper: str
    """Its key in :data:`~slotmesh.training.published.TABLES`."""
    about: str
    """What the table is about, for the help of the command."""
    steps: int | None = None
    """Training steps per row; those of the ``paper`` preset by default."""
    val_every: int = 5_000
    """Steps between two validations."""
    more: tuple[Row, ...] = ()
    """Rows that are not in the paper; they are trained only on request."""

    @cached_property
    def rows(self) -> dict[str, Row]:
        """All rows that can be trained, by their names in commands and files.

        Example:
            >>> from paper.tables.definitions import BY_NAME
            >>> list(BY_NAME["table2"].rows)[:5]
            ['SA', 'SA-SH', 'SA-EMD', 'SA-MESH', 'SA-beyond']
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
        """Return the names of the rows that are asked for; by default all rows of the paper.

        Raises:
            ValueError: If a row does not exist.
        """
        if not words:
            return [name for name, row in self.rows.items() if row not in self.more]
        found: list[str] = []
        for word in words:
            # In a table with several tasks, a name selects the row of each task.
            same = [name for name, row in self.rows.items() if name in (word, f"{row.task}-{word}")]
            if not same:
                raise ValueError(
                    f"--variants has {word!r}, expected rows of {self.name}: "
                    f"{', '.join(self.rows)}."
                )
            found += [name for name in same if name not in found]
        return found

    def keeps_weights(self, name: str, seed: int) -> bool:
        """Return whether the weights of a run are exported."""
        row = self.rows[name]
        return row.label.rstrip("†") in WEIGHTS and not row.changes and seed == 0


def _slug(label: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", label).strip("-")


def _other_gradient(label: str, **changes: str) -> Row:
    how = {"grad": "straight_through", **changes}
    named = {f"transport.{name}": value for name, value in how.items()}
    return Row("Table 3", label, "multi-dsprites", "SA-MESH", named)


def _beyond(variant: str) -> Row:
    """A row with a longer schedule that ends at a learning rate of 0, the same for all variants."""
    changes = {
        "steps": 200_000,
        "val_every": 10_000,
        "data.train_size": 200_000,
        "optim.drop_at": None,
        "optim.cosine": True,
        "optim.warmup_part": 0.05,
        "optim.ema": 0.999,
    }
    return Row("Table 2", f"{variant}-beyond", "clevr-properties", variant, changes)


TABLES = (
    TrainedTable(
        "table2",
        "Table 2",
        "CLEVR properties (Table 2)",
        val_every=2_730,
        more=tuple(map(_beyond, ("SA", "SA-SH", "SA-EMD", "SA-MESH"))),
    ),
    TrainedTable(
        "table2-appendix",
        "Table 2, appendix",
        "CLEVR properties without implicit gradients (Table 2, appendix)",
        val_every=2_730,
    ),
    TrainedTable(
        "table3",
        "Table 3",
        "object discovery on Multi-dSprites (Table 3)",
        steps=75_000,
        more=(
            _other_gradient("SA-MESH-reuse", potentials="reuse"),
            _other_gradient("SA-MESH-detach"),
        ),
    ),
    TrainedTable("table4", "Table 4", "object discovery on ClevrTex (Table 4)", steps=20_000),
    TrainedTable(
        "table5", "Table 5", "object discovery on CLEVRER-S and -L (Table 5)", steps=20_000
    ),
    TrainedTable(
        "section-5-4",
        "Section 5.4",
        "SA-MESH with a smaller learning rate of MESH (section 5.4)",
        # As Table 5, with which it is compared.
        steps=20_000,
    ),
    TrainedTable(
        "ablations",
        "Appendix, ablations",
        "SA with 5 iterations and with learned slots (appendix)",
        steps=75_000,
    ),
    TrainedTable("objective", "Appendix, objective", "the learned objective (appendix)"),
)
"""In the order of the paper."""
BY_NAME = {table.name: table for table in TABLES}
