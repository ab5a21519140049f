"""How a density is fitted: the recipe that ``fit`` and ``audit`` share, and its options."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pyro_mbde.cli.numbers import NUMBER, Whole
from pyro_mbde.cli.running import Running
from pyro_mbde.cli.shared import SKEW, filled_share_option, skew_option

if TYPE_CHECKING:
    from torch.distributions import Distribution

    from pyro_mbde import MBDE, DensityRatio, MollifiedExpFamily

    Trainer = TypeVar("Trainer", MBDE, DensityRatio)

RATIO, BOOSTING, PAPER = METHODS = ("ratio", "mbde", "mbde-paper")
DELTA, ROUNDS = 1e-9, 3


@dataclass(frozen=True)
class Recipe:
    """How a density is fitted. Public, all of it.

    Attributes:
        method: ``ratio``, ``mbde`` or ``mbde-paper``.
        epsilon: of one draw, in nats: of a row, or of a whole batch.
        delta: of the certificate, 0 for the a-priori guarantee; None for ``mbde-paper``.
        skew: where the interval of the tilt lies; None for ``mbde-paper``, or where ``filled_share`` sets it.
        rounds: of boosting; None for ``ratio``.
        steps: gradient steps of a network, None for the method's own.
        rows: of a batch; None for single rows.
        filled_share: share of the base that the table is believed to fill; None if nothing is.
    """

    method: str
    epsilon: float
    delta: float | None
    skew: float | None
    rounds: int | None
    steps: int | None
    rows: int | None = None
    filled_share: float | None = None

    @classmethod
    def from_options(cls, **options: Any) -> Recipe:
        """Fills in what was not given, and refuses what the method has no use for."""
        recipe = cls(**options)
        if recipe.method == RATIO and recipe.rounds is not None:
            raise click.UsageError("--rounds is for the methods mbde and mbde-paper.")
        if recipe.method == PAPER and not (recipe.delta is None and recipe.skew is None):
            raise click.UsageError("--delta and --skew are for the methods ratio and mbde: the paper's has neither.")
        if recipe.method == PAPER and not (recipe.rows is None and recipe.filled_share is None):
            raise click.UsageError("--rows and --filled-share are for the methods ratio and mbde.")
        if recipe.filled_share is not None and recipe.skew is not None:
            raise click.UsageError("--filled-share sets the skew: leave out --skew, or leave out --filled-share.")
        if recipe.method == BOOSTING and recipe.rows is not None and recipe.delta == 0:
            raise click.UsageError("--rows needs a certificate with the method mbde: leave out --delta 0.")
        defaults: dict[str, Any] = {} if recipe.method == PAPER else {"delta": DELTA}
        defaults |= {} if recipe.method == PAPER or recipe.filled_share is not None else {"skew": SKEW}
        defaults |= {} if recipe.method == RATIO else {"rounds": ROUNDS}
        return replace(recipe, **{name: value for name, value in defaults.items() if getattr(recipe, name) is None})

    @property
    def placed_skew(self) -> float:
        """Where the interval lies: the skew, or what the filled share makes of it; 1/2 for the paper's method."""
        if self.filled_share is not None:
            from pyro_mbde._checks import check_number
            from pyro_mbde.calibration.plan import check_finite_epsilon
            from pyro_mbde.privacy.placement import filled_share_skew

            check_number("filled_share", self.filled_share, "be in (0, 1)", lambda share: 0 < share < 1)
            return filled_share_skew(check_finite_epsilon(self.epsilon), self.filled_share)
        return 0.5 if self.skew is None else self.skew

    def trainer(
        self,
        base: Distribution,
        *,
        seed: int | None = None,
        progress: bool = False,
        running: Running | None = None,
    ) -> Callable[[Any], MollifiedExpFamily]:
        """Returns the function that fits a table; arguments are checked here.

        Args:
            base: the public base.
            seed: for a reproducible fit.
            progress: whether to show a progress bar.
            running: where and in how many processes the ratio is trained; None for one process and no checkpoint.
        """
        from pyro_mbde import MBDE, DensityRatio
        from pyro_mbde._checks import check_epsilon
        from pyro_mbde.calibration.plan import plan_calibration

        check_epsilon(self.epsilon)
        if self.method == PAPER:
            # Chains walk among real numbers alone; rejection draws exactly what they approximate.
            sampler = "rejection" if getattr(base.support, "is_discrete", False) else "random_walk"
            boosting = MBDE.paper(
                base, self.epsilon, self.rounds or ROUNDS, sampler=sampler, seed=seed, progress=progress
            )
            return self._with_steps(boosting).fit
        delta, skew = self.delta, self.placed_skew
        assert delta is not None
        if self.method == RATIO:
            running = Running() if running is None else running
            ratio = self._with_steps(DensityRatio(base, seed=seed, progress=progress, **running.arguments))
            plan_calibration(ratio.base, self.epsilon, delta, skew, self.rows)  # checks them before any table is read

            def train(table: Any) -> MollifiedExpFamily:
                if not running.keeps(table):
                    ratio.checkpoint = None
                return ratio.fit(table, resume=running.resume).mollify(self.epsilon, delta, skew, num_rows=self.rows)

            return train
        calibration: dict[str, Any] = {}
        if delta != 0:
            calibration = {"calibrated": True, "delta": delta, "num_rows": self.rows}
        boosting = MBDE(
            base, self.epsilon, self.rounds or ROUNDS, skew=skew, seed=seed, progress=progress, **calibration
        )
        return self._with_steps(boosting).fit

    def _with_steps(self, trainer: Trainer) -> Trainer:
        if self.steps is not None:
            trainer.weak_learner = replace(trainer.weak_learner, num_steps=self.steps)
        return trainer


RECIPE_OPTIONS = tuple(field.name for field in fields(Recipe))


def recipe_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of a trainer to a command, which gets them as ``recipe``."""

    @click.option(
        "--epsilon",
        type=NUMBER,
        help="Privacy parameter, in nats: of one row, or with --rows of a whole batch.",
    )
    @click.option(
        "--rows", type=Whole(1), help="Rows of a batch, drawn together for one price.  [default: single rows]"
    )
    @click.option(
        "--delta",
        type=NUMBER,
        help=f"Probability that the certificate is wrong; 0 for the a-priori guarantee.  [default: {DELTA:g}]",
    )
    @skew_option
    @filled_share_option
    @click.option(
        "--method",
        type=click.Choice(METHODS),
        default=RATIO,
        show_default=True,
        help="One fitted density ratio; boosting; or boosting with the settings of the paper.",
    )
    @click.option("--rounds", type=Whole(1), help=f"Rounds of boosting.  [default: {ROUNDS}]")
    @click.option("--steps", type=Whole(1), help="Gradient steps of a network.  [default: the method's own]")
    @functools.wraps(function)
    def run(*args: Any, **options: Any) -> Any:
        given = {name: options.pop(name) for name in RECIPE_OPTIONS}
        if given["epsilon"] is None and not options.get("check"):
            raise click.UsageError("Missing option '--epsilon'.")
        recipe = None if given["epsilon"] is None else Recipe.from_options(**given)
        return function(*args, recipe=recipe, **options)

    return run
