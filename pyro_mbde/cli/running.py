"""How a fit runs: on which device, over how many processes, with which checkpoint. None of it changes a guarantee."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyro_mbde.cli.numbers import Whole
from pyro_mbde.cli.ranked import num_processes
from pyro_mbde.training.fit_options import CHECKPOINT_STEPS, SPLITS

if TYPE_CHECKING:
    from pyro_mbde.ranks import Ranks


@dataclass(frozen=True)
class Running:
    """How a fit runs.

    Attributes:
        device: where networks are trained, as torch names it; None for the base's own.
        split: what several processes share out: ``rows``, ``networks``, or ``auto``.
        resume: whether to go on from the checkpoint.
        checkpoint_steps: steps between two checkpoints; None for the default.
        checkpoint: its file; None for no checkpoint.
        ranks: the processes; None for one.
    """

    device: str | None = None
    split: str = SPLITS[0]
    resume: bool = False
    checkpoint_steps: int | None = None
    checkpoint: Path | None = None
    ranks: Ranks | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of :class:`~pyro_mbde.DensityRatio` that say so."""
        steps = CHECKPOINT_STEPS if self.checkpoint_steps is None else self.checkpoint_steps
        arguments: dict[str, Any] = {"device": self.device, "split": self.split}
        arguments |= {"checkpoint": self.checkpoint, "checkpoint_steps": steps}
        return arguments if self.ranks is None else {**arguments, "ranks": self.ranks}

    def keeps(self, table: Any) -> bool:
        """Whether a fit to a table writes a checkpoint: to a large one always, to one in memory if asked for."""
        from torch import Tensor

        return not isinstance(table, Tensor) or self.resume or self.checkpoint_steps is not None

    def check(self, method: str, ratio: str) -> None:
        """Raises for options that only the method that trains a density ratio has."""
        given = {
            "--device": self.device is not None,
            "--split": self.split != SPLITS[0],
            "--resume": self.resume,
            "--checkpoint-steps": self.checkpoint_steps is not None,
        }
        if method != ratio and num_processes() > 1:
            raise click.UsageError(f"--method {method} runs in one process. Run it without torchrun.")
        if method != ratio and (wrong := [name for name, is_given in given.items() if is_given]):
            raise click.UsageError(f"{' and '.join(wrong)} {'is' if len(wrong) == 1 else 'are'} for --method {ratio}.")


RUNNING_OPTIONS = ("device", "split", "resume", "checkpoint_steps")


def running_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds these options to a command, which gets them as ``running``."""

    @click.option("--device", help="Where networks are trained, such as cuda.  [default: the CPU]")
    @click.option(
        "--split",
        type=click.Choice(SPLITS),
        default=SPLITS[0],
        show_default=True,
        help="What the processes of torchrun share out: rows, so that R of them see R times as many in a step and need "
        "1/R of the --steps; or the networks.",
    )
    @click.option(
        "--checkpoint-steps",
        type=Whole(1),
        help="Steps between two checkpoints, in MODEL.checkpoint.  [default: "
        f"{CHECKPOINT_STEPS} for a table that is read in parts; none for a small one]",
    )
    @click.option("--resume", is_flag=True, help="Go on from MODEL.checkpoint, where there is one.")
    @functools.wraps(function)
    def run(*args: Any, **options: Any) -> Any:
        given = {name: options.pop(name) for name in RUNNING_OPTIONS}
        return function(*args, running=Running(**given), **options)

    return run
