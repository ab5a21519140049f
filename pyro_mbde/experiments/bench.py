"""Measurements. Ratios and medians of one run."""

from __future__ import annotations

import statistics
import time
from typing import Any

import click
import pyro
import torch
from pyro.infer import MCMC
from pyro.infer.mcmc.rwkernel import RandomWalkKernel
from tqdm import tqdm

from pyro_mbde._runtime import import_arviz, single_thread
from pyro_mbde.distribution import MollifiedExpFamily
from pyro_mbde.experiments.bench_certificate import attack, certificate
from pyro_mbde.experiments.bench_chains import chains
from pyro_mbde.experiments.bench_gain import A_PRIORI, gain, reach
from pyro_mbde.experiments.problems import EPSILONS, ring_tight
from pyro_mbde.training.density_ratio import DensityRatio
from pyro_mbde.training.mbde import MBDE

_MCMC: Any = MCMC  # Pyro leaves it unannotated


@click.group()
def main() -> None:
    """Measure the library on the paper's problems."""


@main.command()
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True)
def fit(repeats: int) -> None:
    """Time of the default fit against the paper's on ring-tight, epsilon 1, one thread each."""
    problem = ring_tight()
    rows = problem.target.sample((10_000,))
    seconds: dict[str, list[float]] = {system: [] for system in A_PRIORI}
    with single_thread():
        for seed in tqdm(range(repeats), desc="pairs of fits"):
            for system, trainer in A_PRIORI.items():
                start = time.perf_counter()
                trainer(problem.base, 1.0, seed=seed, progress=False).fit(rows)
                seconds[system].append(time.perf_counter() - start)
    default, paper = (statistics.median(seconds[system]) for system in ("default", "paper"))
    ratios = [b / a for a, b in zip(seconds["default"], seconds["paper"], strict=True)]
    click.echo(
        f"default {default:.2f} s, paper {paper:.2f} s, ratio {statistics.median(ratios):.1f} (medians of {repeats})"
    )


@main.command()
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True)
@click.option("--skew", type=float, default=0.3, show_default=True)
def mollify(repeats: int, skew: float) -> None:
    """Time of one density ratio at seven epsilons against one paper fit, on ring-tight, one thread each."""
    problem = ring_tight()
    rows = problem.target.sample((10_000,))
    seconds: dict[str, list[float]] = {"fit": [], "mollify": [], "paper": []}
    with single_thread():
        DensityRatio(problem.base, progress=False).fit(rows)  # the first call pays for lazy imports
        for seed in tqdm(range(repeats), desc="pairs of fits"):
            start = time.perf_counter()
            ratio = DensityRatio(problem.base, seed=seed, progress=False).fit(rows)
            fitted = time.perf_counter()
            for epsilon in EPSILONS:
                ratio.mollify(epsilon, skew=skew)
            mollified = time.perf_counter()
            MBDE.paper(problem.base, 1.0, seed=seed, progress=False).fit(rows)
            for name, value in zip(
                seconds, (fitted - start, mollified - fitted, time.perf_counter() - mollified), strict=True
            ):
                seconds[name].append(value)
    ratios = [c / (a + b) for a, b, c in zip(*seconds.values(), strict=True)]
    medians = ", ".join(f"{name} {statistics.median(values):.2f} s" for name, values in seconds.items())
    click.echo(f"{medians}, ratio {statistics.median(ratios):.1f} (medians of {repeats})")


@main.command()
@click.option("--num-draws", type=click.IntRange(1), default=10_000, show_default=True)
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True)
def draws(num_draws: int, repeats: int) -> None:
    """Effective draws per second: exact rejection against Pyro's stock random walk, epsilon 1, T = 3, d = 2."""
    problem = ring_tight()
    density = MBDE(problem.base, 1.0, seed=0).fit(problem.target)
    exact: list[float] = []
    walk: list[float] = []
    with single_thread():
        density.sample(torch.Size([num_draws]))  # the first call pays for lazy imports
        for _ in tqdm(range(repeats), desc="pairs of runs"):
            start = time.perf_counter()
            density.sample(torch.Size([num_draws]))
            exact.append(num_draws / (time.perf_counter() - start))
            walk.append(_stock_random_walk(density, num_draws))
    ratios = [a / b for a, b in zip(exact, walk, strict=True)]
    click.echo(
        f"exact {statistics.median(exact):,.0f} draws/s, stock random walk {statistics.median(walk):,.2f} effective "
        f"draws/s, ratio {statistics.median(ratios):,.0f} (medians of {repeats})"
    )


def _stock_random_walk(density: MollifiedExpFamily, num_samples: int) -> float:
    """Effective draws per second, in the worst coordinate, of Pyro's own kernel called as its documentation does."""

    def model() -> torch.Tensor:
        return pyro.sample("x", density)

    mcmc = _MCMC(RandomWalkKernel(model), num_samples=num_samples, warmup_steps=1000, disable_progbar=True)
    start = time.perf_counter()
    mcmc.run()
    seconds = time.perf_counter() - start
    chain = mcmc.get_samples(group_by_chain=True)["x"]
    arviz: Any = import_arviz()
    ess = min(float(arviz.ess(chain[..., index].numpy())) for index in range(chain.shape[-1]))
    return ess / seconds


for command in (gain, reach, certificate, attack, chains):
    main.add_command(command)

if __name__ == "__main__":
    main()
