"""Every row of the paper's tables: what it reports, and the settings that train it.

Percentages are kept as parts of 1, as the metrics give them; normalised errors as they are.
"""

from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, TypeVar

from slotmesh.training.settings import Settings, flag
from slotmesh.training.tasks import preset

Results = dict[str, tuple[float, float | None]]
"""Mean (or median) and standard deviation over seeds, by the name of the metric."""

TABLES = {
    "Table 1": "Random objects, RMSE over sigma; median of 5 seeds.",
    "Table 2": "CLEVR properties, average precision; mean and deviation of 5 seeds.",
    "Table 2, appendix": "As Table 2, without implicit differentiation.",
    "Table 3": "Multi-dSprites; mean and deviation of 5 seeds.",
    "Table 4": "ClevrTex; mean and deviation of 5 seeds.",
    "Table 5": "CLEVRER, two frames; mean and deviation of 5 seeds.",
    "Section 5.4": "A smaller MESH learning rate, which the paper does not give; mean of 5 seeds.",
    "Appendix, ablations": "Mean and deviation; the number of seeds is not said.",
    "Appendix, objective": "A learned objective in place of the entropy; shown, not measured.",
}
"""What each table is, by the name that a row has for it."""


@dataclass(frozen=True)
class Row:
    """One row of a table."""

    table: str
    """Where it is, a key of :data:`TABLES`."""
    label: str
    """What the paper calls it."""
    task: str
    """The task that it belongs to."""
    variant: str | None
    """None: the paper copied the row from elsewhere, and no command makes it."""
    changes: dict[str, Any] = field(default_factory=dict)
    """Settings that differ from the task's ``paper`` preset."""
    results: Results = field(default_factory=dict)

    @property
    def args(self) -> tuple[str, ...] | None:
        """What follows ``slotmesh train TASK`` for this row.

        Example:
            >>> from slotmesh.training.published import ROWS
            >>> [row.args for row in ROWS if row.label == "SA, 5 iterations"]
            [('--variant', 'SA', '--preset', 'paper', '--model.n-iters', '5')]
        """
        if self.variant is None:
            return None
        return ("--variant", self.variant, "--preset", "paper", *flags(self.changes))

    def settings(self, start: str = "paper") -> Settings:
        """The settings of a run of this row, from one of the presets.

        Raises:
            ValueError: If no command makes the row.
        """
        if self.variant is None:
            raise ValueError(f"{self.label} in {self.table} was copied from elsewhere.")
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
    """Settings as the command line takes them.

    Example:
        >>> from slotmesh.training.published import flags
        >>> flags({"data.sigma": 0.1, "model.implicit": False})
        ['--data.sigma', '0.1', '--model.no-implicit']
    """
    words: list[str] = []
    for name, value in changes.items():
        if isinstance(value, bool):
            room, dot, last = name.rpartition(".")
            words.append(flag(f"{room}{dot}{'' if value else 'no_'}{last}"))
        else:
            words += [flag(name), f"{value}"]
    return words


def row_of(settings: Settings) -> Row | None:
    """The row that a run belongs to, whatever its preset, length and sizes; None if to no row.

    Example:
        >>> from slotmesh.training.published import row_of
        >>> from slotmesh.training.tasks import preset
        >>> row_of(preset("clevrtex", "SA-MESH", "quick")).results["fg_ari"]
        (0.79, 0.026)
    """
    return _by_kind().get(_kind(settings))


@cache
def _by_kind() -> dict[tuple[Any, ...], Row]:
    return {_kind(row.settings()): row for row in ROWS if row.variant is not None}


def _kind(settings: Settings) -> tuple[Any, ...]:
    """All that tells rows apart."""
    mine: Any = settings
    usual: Any = preset(settings.task, settings.variant, settings.preset)
    lr, usual_lr = (getattr(s.transport, "lr", 0.0) for s in (mine, usual))
    init = mine.model.init
    if not mine.model.implicit and init == "fixed-gaussian":
        # Learned or not, a Gaussian is no row of its own.
        init = "gaussian"
    return (
        settings.task,
        settings.variant,
        getattr(mine.data, "sigma", None),
        mine.model.n_iters,
        init,
        mine.model.implicit,
        getattr(mine.transport, "objective", None),
        getattr(mine.transport, "combine", "sum"),
        getattr(mine.transport, "approximate", None),
        # No row of the paper has what goes beyond it.
        *(getattr(mine.model, name, False) for name in ("raw_values", "rescale", "head")),
        getattr(mine, "relative_loss", False),
        # Only one table has a row for another learning rate of MESH.
        settings.task == "clevrer-s" and lr < usual_lr,
    )


def _percent(**results: tuple[float, float | None]) -> Results:
    return {
        name: (round(mean / 100, 6), None if std is None else round(std / 100, 6))
        for name, (mean, std) in results.items()
    }


_APS = ("ap_inf", "ap_1", "ap_0.5", "ap_0.25", "ap_0.125", "ap_0.0625")


def _ap(*results: tuple[float, float]) -> Results:
    return _percent(**dict(zip(_APS, results, strict=False)))


def _random_objects() -> list[Row]:
    table: dict[str, tuple[float, float, float]] = {
        "SA": (0.44, 0.53, 0.65),
        "SA-SH": (0.27, 0.32, 0.41),
        "SA-EMD": (0.23, 0.52, 1.04),
        "SA-MESH": (0.24, 0.27, 0.31),
    }
    return [
        Row(
            "Table 1",
            f"{variant}, sigma {sigma}",
            "random-objects",
            variant,
            {"data.sigma": sigma},
            {"nrmse": (error, None)},
        )
        for variant, errors in table.items()
        for sigma, error in zip((1.0, 0.1, 0.01), errors, strict=True)
    ]


_IDSPN = _ap((98.8, 0.5), (98.5, 0.6), (98.2, 0.6), (95.8, 0.7), (76.9, 2.5), (32.3, 3.9))
_SA_ORIGINAL = _ap((94.3, 1.1), (86.7, 1.4), (56.0, 3.6), (10.8, 1.7), (0.9, 0.2))

_CLEVR = {
    "SA": _ap((94.3, 0.4), (85.7, 1.6), (77.2, 1.5), (53.1, 2.7), (16.7, 1.8), (4.0, 0.7)),
    "SA-SH": _ap((98.9, 0.2), (97.7, 0.5), (95.2, 0.9), (83.3, 0.8), (38.5, 2.0), (10.0, 1.4)),
    "SA-EMD": _ap((99.3, 0.3), (98.1, 0.4), (95.9, 0.8), (85.8, 1.1), (42.0, 2.0), (11.4, 1.3)),
    "SA-MESH": _ap((99.4, 0.1), (99.2, 0.2), (98.9, 0.2), (91.1, 1.1), (47.6, 0.8), (12.5, 0.4)),
}

_CLEVR_UNROLLED = {
    "SA": _ap((89.1, 1.2), (85.7, 1.0), (73.3, 1.2), (35.4, 1.5), (9.0, 0.8), (2.0, 0.3)),
    "SA-SH": _ap((95.6, 1.0), (94.0, 1.1), (84.5, 1.7), (41.3, 3.0), (10.4, 0.7), (2.5, 0.4)),
    "SA-EMD": _ap((99.2, 0.2), (98.7, 0.4), (97.0, 0.8), (82.4, 1.2), (34.0, 2.2), (8.3, 0.9)),
    "SA-MESH": _ap((99.2, 0.3), (99.1, 0.3), (98.8, 0.5), (88.3, 0.8), (40.8, 1.0), (10.6, 0.3)),
}


def _clevr() -> list[Row]:
    rows: list[Row] = []
    unrolled = {"model.implicit": False, "model.init": "gaussian"}
    for table, results, mark, changes in (
        ("Table 2", _CLEVR, "†", {}),
        ("Table 2, appendix", _CLEVR_UNROLLED, "", unrolled),
    ):
        rows.append(Row(table, "iDSPN", "clevr-properties", None, {}, _IDSPN))
        rows.append(Row(table, "SA (original)", "clevr-properties", None, {}, _SA_ORIGINAL))
        rows += [
            Row(table, variant + mark, "clevr-properties", variant, changes, found)
            for variant, found in results.items()
        ]
    return rows


def _images() -> list[Row]:
    sprites = {
        "SA": _percent(fg_ari=(92.2, 0.5), fg_miou=(24.3, 5.4)),
        "SA-SH": _percent(fg_ari=(87.2, 1.8), fg_miou=(84.0, 3.1)),
        "SA-MESH": _percent(fg_ari=(95.6, 0.2), fg_miou=(86.2, 2.2)),
    }
    textures = {
        "SA": _percent(fg_ari=(52.8, 14.9), fg_miou=(26.3, 14.9)),
        "SA-SH": _percent(fg_ari=(70.8, 5.8), fg_miou=(35.3, 4.4)),
        "SA-MESH": _percent(fg_ari=(79.0, 2.6), fg_miou=(43.2, 4.0)),
    }
    original = _percent(fg_ari=(91.3, 0.3))
    return [
        Row("Table 3", "SA (original)", "multi-dsprites", None, {}, original),
        *(Row("Table 3", v, "multi-dsprites", v, {}, found) for v, found in sprites.items()),
        *(Row("Table 4", v, "clevrtex", v, {}, found) for v, found in textures.items()),
    ]


def _video(ari: tuple[float, float], miou: tuple[float, float], tc: tuple[float, float]) -> Results:
    return _percent(fg_ari=ari, fg_miou=miou, tc=tc)


def _videos() -> list[Row]:
    short = {
        "SA": _video((78.1, 14.0), (16.8, 9.8), (26.3, 22.5)),
        "SA-fixed-noise": _video((71.0, 34.0), (17.1, 11.4), (42.8, 19.3)),
        "SA-learned-noise": _video((80.2, 14.1), (13.2, 4.9), (21.3, 13.5)),
        "SA-SH": _video((89.3, 2.3), (10.0, 2.8), (89.7, 2.4)),
        "SA-MESH": _video((93.8, 1.0), (44.1, 7.1), (80.2, 10.1)),
    }
    long = {
        "SA": _video((69.6, 14.9), (12.2, 6.6), (12.8, 8.7)),
        "SA-fixed-noise": _video((79.4, 5.9), (11.9, 6.2), (18.5, 13.0)),
        "SA-learned-noise": _video((84.7, 5.7), (10.2, 1.2), (19.4, 7.7)),
        "SA-SH": _video((82.9, 1.5), (7.0, 0.2), (26.8, 0.5)),
        "SA-MESH": _video((92.9, 2.2), (54.4, 8.9), (55.4, 5.7)),
    }
    labels = {"SA-fixed-noise": "SA fixed noise", "SA-learned-noise": "SA learned noise"}
    return [
        Row("Table 5", labels.get(variant, variant), task, variant, {}, found)
        for task, table in (("clevrer-s", short), ("clevrer-l", long))
        for variant, found in table.items()
    ]


def _ablations() -> list[Row]:
    return [
        Row(
            "Section 5.4",
            "SA-MESH, smaller MESH learning rate",
            "clevrer-s",
            "SA-MESH",
            # Half of the usual one: the paper does not give it.
            {"transport.lr": 2.0},
            _percent(fg_ari=(90.0, None), fg_miou=(22.7, None), tc=(95.1, None)),
        ),
        Row(
            "Appendix, ablations",
            "SA, 5 iterations",
            "multi-dsprites",
            "SA",
            {"model.n_iters": 5},
            _percent(fg_ari=(81.9, 6.1)),
        ),
        Row(
            "Appendix, ablations",
            "SA, learned slot initialisation",
            "multi-dsprites",
            "SA",
            {"model.init": "learned-slots"},
            _percent(fg_ari=(93.0, 1.0)),
        ),
        Row(
            "Appendix, objective",
            "SA-MESH, learned objective",
            "random-objects",
            "SA-MESH",
            # The paper does not say on which task: this one is the shortest.
            {"transport.objective": "learned"},
        ),
    ]


ROWS: tuple[Row, ...] = (*_random_objects(), *_clevr(), *_images(), *_videos(), *_ablations())
"""All rows, in the order of the paper."""
