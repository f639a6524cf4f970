"""The data of a run, as Lightning asks for it."""

from lightning.pytorch import LightningDataModule
from rich.console import Console

from slotmesh.training.cache import Cached, cached
from slotmesh.training.stream import EvalBatches, Order, TrainBatches
from slotmesh.training.tasks.experiment import Experiment, Source, Split

# Batches that a world makes at a time on a GPU, which is idle with few samples.
_AHEAD = 16


class RunData(LightningDataModule):
    """Training and validation batches of an experiment.

    Args:
        experiment: Whose.
        console: Shows the progress where samples are made ahead, if given.
    """

    def __init__(self, experiment: Experiment, console: Console | None = None) -> None:
        super().__init__()
        self.experiment = experiment
        self.console = console
        self._train: TrainBatches | None = None
        self._kept: dict[str, bool] = {}

    def state_dict(self) -> dict[str, bool]:
        """Which sets are kept in memory: a resumed run sees the same pixels."""
        return dict(self._kept)

    def load_state_dict(self, state_dict: dict[str, bool]) -> None:
        """Keep the same."""
        self._kept = dict(state_dict)

    def train_dataloader(self) -> TrainBatches:
        """From the trainer's step on, without end."""
        trainer = self.trainer
        assert trainer is not None
        settings, device = self.experiment.settings, trainer.strategy.root_device
        source, n = self._source("train")
        order = Order(
            n,
            batch_size=settings.data.batch_size,
            seed=settings.seed,
            rank=trainer.global_rank,
            n_ranks=trainer.world_size,
        )
        self._train = TrainBatches(
            source,
            order,
            start=lambda: trainer.global_step,
            ahead=_AHEAD if device.type == "cuda" and not self._workers else 1,
            workers=self._workers,
        )
        return self._train

    def teardown(self, stage: str) -> None:
        """Let nobody read on."""
        if self._train is not None:
            self._train.close()

    def on_exception(self, exception: BaseException) -> None:
        """The same after an error."""
        self.teardown("fit")

    def val_dataloader(self) -> EvalBatches:
        """The validation set."""
        trainer = self.trainer
        assert trainer is not None
        source, n = self._source("val")
        assert n is not None
        return EvalBatches(
            source,
            n,
            batch_size=self.experiment.settings.data.batch_size,
            rank=trainer.global_rank,
            n_ranks=trainer.world_size,
            workers=self._workers,
        )

    def _source(self, split: Split) -> tuple[Source, int | None]:
        """A world that has an end is made once; it would be made anew every epoch otherwise."""
        trainer = self.trainer
        assert trainer is not None
        device = trainer.strategy.root_device
        source, n = self.experiment.source(split, device)
        if self._is_real:
            return source, n
        made = cached(
            source,
            n,
            device,
            self.console if trainer.is_global_zero else None,
            split=split,
            reads=self.experiment.reads(split),
            before=self._kept.get(split),
        )
        self._kept[split] = isinstance(made, Cached)
        return made, n

    @property
    def _is_real(self) -> bool:
        return getattr(self.experiment.settings.data, "root", None) is not None

    @property
    def _workers(self) -> int:
        """Only a real dataset is read by other processes."""
        return self.experiment.settings.data.workers if self._is_real else 0
