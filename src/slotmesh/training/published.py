"""Published results of tasks, and the settings that reproduce each of them.

Each task lists its own (:attr:`Experiment.published`), and reports show them beside runs.
Percentages are stored as fractions of 1, like the metrics; normalised errors as they are.
"""

from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from slotmesh.training.settings import Settings, flag

Results = dict[str, tuple[float, float | None]]
"""Mean (or median) and standard deviation over seeds, by the name of the metric."""


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper."""

    about: str
    """What the table is about, in a sentence."""
    numbers: str = "mean and standard deviation of 5 seeds"
    """What the numbers of the paper are; empty if it has none, as ``about`` then says."""
    seeds: int | None = 5
    """Number of seeds behind each number, if the paper gives it."""


TABLES = {
    "Table 1": PaperTable("Random objects, RMSE over sigma.", "median of 5 seeds"),
    "Table 2": PaperTable("CLEVR properties, average precision."),
    "Table 2, appendix": PaperTable("As Table 2, without implicit differentiation."),
    "Table 3": PaperTable("Multi-dSprites."),
    "Table 4": PaperTable("ClevrTex."),
    "Table 5": PaperTable("CLEVRER, two frames."),
    "Section 5.4": PaperTable(
        "A smaller MESH learning rate, which the paper does not give.", "mean of 5 seeds"
    ),
    "Appendix, ablations": PaperTable(
        "Other iterations and initial slots.",
        "mean and standard deviation; the number of seeds is not given",
        None,
    ),
    "Appendix, objective": PaperTable(
        "A learned objective in place of the entropy. The paper shows this objective but reports "
        "no number.",
        "",
        None,
    ),
}
"""All tables, by the names that rows use."""


@dataclass(frozen=True)
class Row:
    """One row of a table."""

    table: str
    """The table of the row, a key of :data:`TABLES`."""
    label: str
    """Name of the row in the paper."""
    task: str
    """The task of the row."""
    variant: str | None
    """None if the paper quotes the row from elsewhere, so that no command reproduces it."""
    changes: dict[str, Any] = field(default_factory=dict)
    """Settings that differ from the task's ``paper`` preset."""
    results: Results = field(default_factory=dict)

    @property
    def args(self) -> tuple[str, ...] | None:
        """The arguments of ``slotmesh train TASK`` for this row.

        Example:
            >>> from slotmesh.training.published import published_rows
            >>> [row.args for row in published_rows() if row.label == "SA, 5 iterations"]
            [('--variant', 'SA', '--preset', 'paper', '--model.n-iters', '5')]
        """
        if self.variant is None:
            return None
        return ("--variant", self.variant, "--preset", "paper", *flags(self.changes))

    def settings(self, start: str = "paper") -> Settings:
        """The settings of a run of this row, from one of the presets.

        Raises:
            ValueError: If no command reproduces the row.
        """
        if self.variant is None:
            raise ValueError(f"{self.label} in {self.table} was copied from elsewhere.")
        # Tasks list their own rows.
        from slotmesh.training.tasks import preset

        return changed(preset(self.task, self.variant, start), self.changes)


S = TypeVar("S", bound=Settings)


def changed(settings: S, changes: dict[str, Any]) -> S:
    """Settings with some changed, by their names on the command line without dashes.

    Example:
        >>> from slotmesh.training.published import changed
        >>> from slotmesh.training.tasks import preset
        >>> changed(preset("clevrtex"), {"steps": 8, "transport.lr": 2.0}).transport.lr
        2.0
    """
    for name, value in changes.items():
        room, _, last = name.rpartition(".")
        if room:
            last, value = room, replace(getattr(settings, room), **{last: value})
        settings = replace(settings, **{last: value})
    return settings


def flags(changes: dict[str, Any]) -> list[str]:
    """Settings as flags of the command line.

    Example:
        >>> from slotmesh.training.published import flags
        >>> flags({"data.sigma": 0.1, "model.implicit": False, "seeds": (0, 1)})
        ['--data.sigma', '0.1', '--model.no-implicit', '--seeds', '0', '1']
    """
    words: list[str] = []
    for name, value in changes.items():
        if isinstance(value, bool):
            room, dot, last = name.rpartition(".")
            words.append(flag(f"{room}{dot}{'' if value else 'no_'}{last}"))
        else:
            several = isinstance(value, tuple | list)
            words += [flag(name), *map(str, value if several else (value,))]
    return words


def row_of(settings: Settings) -> Row | None:
    """The row that a run belongs to, whatever its preset, length and sizes; None if there is none.

    Example:
        >>> from slotmesh.training.published import row_of
        >>> from slotmesh.training.tasks import preset
        >>> row_of(preset("clevrtex", "SA-MESH", "quick")).results["fg_ari"]
        (0.79, 0.026)
    """
    mine = (settings.task, settings.variant)
    for row in (row for row in published_rows() if (row.task, row.variant) == mine):
        if _kind(row.settings()) == _kind(settings):
            return row
    return None


def published_rows() -> list[Row]:
    """All rows of all tasks, in the order of the tables."""
    from slotmesh.training.tasks import TASKS

    found = [row for task in TASKS.values() for row in task.published]
    order = {table: i for i, table in enumerate(TABLES)}
    return sorted(found, key=lambda row: order.get(row.table, len(order)))


def _kind(settings: Settings) -> tuple[Any, ...]:
    """Everything that distinguishes rows."""
    from slotmesh.training.tasks import preset

    mine: Any = settings
    usual: Any = preset(settings.task, settings.variant, settings.preset)
    paper: Any = preset(settings.task, settings.variant, "paper")
    # Without lr, a run uses a step instead, which no row of the paper does.
    lr, usual_lr = (getattr(s.transport, "lr", 0.0) or 0.0 for s in (mine, usual))
    n_iters = mine.model.n_iters
    if n_iters == usual.model.n_iters:
        # The preset of an easy world may have fewer.
        n_iters = paper.model.n_iters
    init = mine.model.init
    if not mine.model.implicit and init == "fixed-gaussian":
        # A Gaussian is not a row of its own, whether it is learned or not.
        init = "gaussian"
    return (
        settings.task,
        settings.variant,
        getattr(mine.data, "sigma", None),
        n_iters,
        init,
        mine.model.implicit,
        getattr(mine.transport, "objective", None),
        getattr(mine.transport, "combine", "sum"),
        getattr(mine.transport, "approximate", None),
        getattr(mine.transport, "step", None),
        # No row of the paper has settings that go beyond it.
        *(getattr(mine.model, name, False) for name in ("raw_values", "rescale", "head")),
        getattr(mine, "relative_loss", False),
        # Only one table has a row for another learning rate of MESH.
        settings.task == "clevrer-s" and lr < usual_lr,
    )


def percent(**results: tuple[float, float | None]) -> Results:
    """Results that a paper gives in percent: mean and standard deviation by metric."""
    return {
        name: (round(mean / 100, 6), None if std is None else round(std / 100, 6))
        for name, (mean, std) in results.items()
    }
