"""What fits gain, beside the most that their guarantee allows."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import click
import torch
from tqdm import tqdm

from pyro_mbde.cli.forward import PrintingCommand
from pyro_mbde.density.distribution import MollifiedExpFamily
from pyro_mbde.experiments.problems import DOMAINS, EPSILONS, PROBLEMS, Problem
from pyro_mbde.limits import best_reachable
from pyro_mbde.metrics import Estimate, kl_gain
from pyro_mbde.training.density_ratio import DensityRatio
from pyro_mbde.training.mbde import MBDE

A_PRIORI: dict[str, Callable[..., MBDE]] = {"default": MBDE, "paper": MBDE.paper}
#: Draws of P for gains and limits in more than two dimensions.
_NUM_DRAWS = 2**20

Fit = Callable[[float, float], MollifiedExpFamily]


def _fit_ratio(problem: Problem, rows: torch.Tensor, seed: int) -> Fit:
    """One fit for every epsilon and skew."""
    ratio = DensityRatio(problem.base, seed=seed, progress=False).fit(rows)
    return lambda epsilon, skew: ratio.mollify(epsilon, skew=skew)


def _fit_boosted(num_rounds: int, *, reweighted: bool) -> Callable[[Problem, torch.Tensor, int], Fit]:
    """A new fit for every epsilon and skew."""

    def start(problem: Problem, rows: torch.Tensor, seed: int) -> Fit:
        def fit(epsilon: float, skew: float) -> MollifiedExpFamily:
            options: dict[str, Any] = {"calibrated": True, "reweighted": reweighted, "skew": skew}
            return MBDE(problem.base, epsilon, num_rounds, **options, seed=seed, progress=False).fit(rows)

        return fit

    return start


CALIBRATED: dict[str, Callable[[Problem, torch.Tensor, int], Fit]] = {"ratio": _fit_ratio} | {
    f"mbde-{num_rounds}{'-reweighted' if reweighted else ''}": _fit_boosted(num_rounds, reweighted=reweighted)
    for num_rounds in (1, 3, 10)
    for reweighted in (False, True)
}


def gain_of(problem: Problem, density: MollifiedExpFamily) -> Estimate:
    """The gain of a fit, by quadrature or on draws."""
    return kl_gain(problem.target, problem.base, density, problem.box, num_draws=_NUM_DRAWS)


@click.command(cls=PrintingCommand)
@click.option("--system", "systems", multiple=True, type=click.Choice(list(A_PRIORI)), default=tuple(A_PRIORI))
@click.option(
    "--problem", "names", multiple=True, type=click.Choice(list(PROBLEMS)), default=("ring-tight", "mixture-1d")
)
@click.option("--epsilon", "epsilons", multiple=True, type=float, default=(0.25, 1.0, 5.0), show_default=True)
@click.option("--seeds", type=click.IntRange(1), default=5, show_default=True, help="Number of seeds.")
def gain(systems: tuple[str, ...], names: tuple[str, ...], epsilons: tuple[float, ...], seeds: int) -> None:
    """KL(P, Q0) - KL(P, Q) in nats; 10,000 rows, T = 3; beside the most that epsilon allows a priori."""
    total = len(systems) * len(names) * len(epsilons) * seeds
    with tqdm(total=total, desc="fits", unit="fit") as bar:
        columns = "".join(f"{column:>8}" for column in ("median", "worst", "best", "limit", "seconds"))
        bar.write(f"{'problem':<12}{'epsilon':>8}  {'system':<9}{columns}")
        for name in names:
            problem = PROBLEMS[name]()
            for epsilon in epsilons:
                limit = best_reachable(
                    problem.target, problem.base, epsilon, guarantee="a-priori", box=problem.box, num_draws=_NUM_DRAWS
                )
                for system in systems:
                    gains, seconds = [], []
                    for seed in range(seeds):
                        start = time.perf_counter()
                        density = A_PRIORI[system](problem.base, epsilon, seed=seed, progress=False).fit(problem.target)
                        seconds.append(time.perf_counter() - start)
                        gains.append(gain_of(problem, density).value)
                        bar.update()
                    bar.write(
                        f"{name:<12}{epsilon:>8g}  {system:<9}{statistics.median(gains):>8.4f}{min(gains):>8.4f}"
                        f"{max(gains):>8.4f}{limit.gain:>8.4f}{statistics.median(seconds):>8.2f}"
                    )


@click.command(cls=PrintingCommand)
@click.option("--system", type=click.Choice(list(CALIBRATED)), default="ratio", show_default=True)
@click.option("--problem", "names", multiple=True, type=click.Choice(list(PROBLEMS)), default=tuple(DOMAINS))
@click.option("--epsilon", "epsilons", multiple=True, type=float, default=EPSILONS, show_default=True)
@click.option("--skew", "skews", multiple=True, type=float, default=(0.5, 0.3), show_default=True)
@click.option("--rows", type=click.IntRange(2), default=10_000, show_default=True, help="Rows of the table.")
@click.option("--seeds", type=click.IntRange(1), default=5, show_default=True, help="Number of seeds.")
def reach(
    system: str, names: tuple[str, ...], epsilons: tuple[float, ...], skews: tuple[float, ...], rows: int, seeds: int
) -> None:
    """Share of the best reachable gain that a calibrated fit gets, certificate and all: median and worst seed."""
    with tqdm(total=len(names) * seeds * len(skews) * len(epsilons), desc=system, unit="density") as bar:
        bar.write(f"{'problem':<12}{'skew':>5}{'epsilon':>8}{'best':>9}{'gain':>9}{'share':>8}{'worst':>8}{'+-':>8}")
        for name in names:
            problem = PROBLEMS[name]()
            gains: dict[tuple[float, float], list[Estimate]] = {}
            for seed in range(seeds):
                torch.manual_seed(1000 + seed)  # this process runs nothing else
                fit = CALIBRATED[system](problem, problem.target.sample((rows,)), seed)
                for skew in skews:
                    for epsilon in epsilons:
                        gains.setdefault((skew, epsilon), []).append(gain_of(problem, fit(epsilon, skew)))
                        bar.update()
            for (skew, epsilon), estimates in gains.items():
                best = best_reachable(
                    problem.target, problem.base, epsilon, skew, box=problem.box, num_draws=_NUM_DRAWS
                )
                values = [estimate.value for estimate in estimates]
                median = statistics.median(values)
                # The draws are independent: the sum is an upper bound of the difference's error.
                error = (max(estimate.standard_error for estimate in estimates) + best.standard_error) / best.gain
                bar.write(
                    f"{name:<12}{skew:>5g}{epsilon:>8g}{best.gain:>9.4f}{median:>9.4f}{median / best.gain:>8.4f}"
                    f"{min(values) / best.gain:>8.4f}{error:>8.4f}"
                )
