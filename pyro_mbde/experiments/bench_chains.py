"""Effective draws per second of every way to draw from a density."""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import click
import pyro
import torch
from pyro.infer import HMC, MCMC, NUTS
from pyro.infer.mcmc.rwkernel import RandomWalkKernel
from pyro.infer.mcmc.util import initialize_model
from pyro.ops.integrator import potential_grad
from torch import Tensor
from tqdm import tqdm

from pyro_mbde._torch_state import single_thread
from pyro_mbde.cli.forward import PrintingCommand
from pyro_mbde.density.distribution import MollifiedExpFamily
from pyro_mbde.experiments.problems import DIMENSIONS, Problem, ring_tight
from pyro_mbde.mcmc.run import run_mcmc
from pyro_mbde.mcmc.target import DensityTarget
from pyro_mbde.pictures import import_arviz
from pyro_mbde.training.mbde import MBDE

# Pyro leaves these unannotated.
_MCMC: Any = MCMC
_initialize_model: Any = initialize_model
_potential_grad: Any = potential_grad
_STOCK: dict[str, Any] = {"random_walk": RandomWalkKernel, "hmc": HMC, "nuts": NUTS}
#: Steps of one chain: to adapt in, and kept. Enough for an effective sample size of some hundreds.
_STEPS = {"random_walk": (500, 4000), "hmc": (200, 200), "nuts": (200, 200)}
#: Chains advanced together, and the steps of each. A thousand chains learn their step in fewer.
_LOCKSTEP = {4: (500, 4000), 64: (200, 2000), 1024: (200, 1000)}
_PROBLEMS: dict[str, Callable[[], Problem]] = {
    "ring-tight, d = 2": ring_tight,
    "mixture, d = 10": DIMENSIONS["mixture-10d"],
}


@click.command(cls=PrintingCommand)
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True)
@click.option("--quick", is_flag=True, help="A twentieth of the steps: to see that it runs.")
def chains(repeats: int, quick: bool) -> None:
    """Effective draws per second: stock Pyro kernels, ours, many chains at once, exact draws; T = 3, one thread.

    The effective size is the bulk one of the worst coordinate; warmup and setup count as time.
    """
    share = 0.05 if quick else 1.0
    with single_thread():
        for name, problem in _PROBLEMS.items():
            for epsilon in (1.0, 5.0):
                fitted = MBDE(problem().base, epsilon, num_rounds=3, seed=0, progress=False).fit(problem().target)
                ways = _ways(fitted, share)
                speeds: dict[str, list[float]] = {way: [] for way in ways}
                for _ in tqdm(range(repeats), desc=f"{name}, epsilon {epsilon:g}"):
                    for way, run in ways.items():
                        speeds[way].append(run())
                _report(f"{name}, epsilon {epsilon:g}", speeds)
                stock, ours = _gradient_seconds(fitted)
                click.echo(f"energy and gradient: stock {1e6 * stock:.0f} us, ours {1e6 * ours:.0f} us")


def _ways(density: MollifiedExpFamily, share: float) -> dict[str, Callable[[], float]]:
    """Every way to draw, as a function that returns effective draws per second."""

    def steps(number: int) -> int:
        return max(int(share * number), 8)

    def model() -> Tensor:
        return pyro.sample("x", density)

    def stock(kernel: str) -> float:
        mcmc = _MCMC(
            _STOCK[kernel](model),
            num_samples=steps(_STEPS[kernel][1]),
            warmup_steps=steps(_STEPS[kernel][0]),
            disable_progbar=True,
        )
        return _effective(lambda: (mcmc.run(), mcmc.get_samples(group_by_chain=True)["x"])[1])

    def ours(kernel: str, num_chains: int, warmup_steps: int, num_samples: int) -> float:
        def run() -> Tensor:
            made = run_mcmc(
                density, kernel, steps(num_samples), steps(warmup_steps), num_chains, progress=False, num_workers=1
            )
            return made.draws["x"]

        return _effective(run)

    def exact() -> float:
        start = time.perf_counter()
        density.sample(torch.Size([steps(100_000)]))
        return steps(100_000) / (time.perf_counter() - start)

    ways: dict[str, Callable[[], float]] = {}
    for kernel, lengths in _STEPS.items():
        ways[f"stock {kernel}"] = partial(stock, kernel)
        ways[kernel] = partial(ours, kernel, 1, *lengths)
    for num_chains, lengths in _LOCKSTEP.items():
        ways[f"lockstep, {num_chains:,} chains"] = partial(ours, "lockstep_random_walk", num_chains, *lengths)
    ways["independence, 64 chains"] = partial(ours, "independence", 64, 10, 2000)
    ways["exact"] = exact
    return ways


def _gradient_seconds(density: MollifiedExpFamily, num_evaluations: int = 200) -> tuple[float, float]:
    """Median seconds of an energy and its gradient: of the model as stock kernels see it, and of ours."""

    def model() -> Tensor:
        return pyro.sample("x", density)

    target = DensityTarget(density)
    params = {name: value[0] for name, value in target.starts(1).items()}
    seconds: tuple[list[float], list[float]] = ([], [])
    with pyro.validation_enabled(False):
        stock = _initialize_model(model)[1]
        for _ in range(num_evaluations):
            for potential_fn, times in zip((stock, target.potential_fn), seconds, strict=True):
                start = time.perf_counter()
                _potential_grad(potential_fn, dict(params))
                times.append(time.perf_counter() - start)
    return statistics.median(seconds[0]), statistics.median(seconds[1])


def _effective(run: Callable[[], Tensor]) -> float:
    """Effective draws per second of the chains that ``run`` returns, in the worst coordinate."""
    start = time.perf_counter()
    draws = run()
    seconds = time.perf_counter() - start
    arviz: Any = import_arviz()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a frozen chain has no effective size: it counts as 0
        sizes = [float(arviz.ess(draws[..., index].numpy())) for index in range(draws.shape[-1])]
    return min(0.0 if size != size else size for size in sizes) / seconds


def _report(title: str, speeds: dict[str, list[float]]) -> None:
    stock = statistics.median(speeds["stock random_walk"])
    click.echo(f"\n{title}\n{'':26}{'ESS/s':>12}{'x stock walk':>14}{'x stock':>10}")
    for way, values in speeds.items():
        median = statistics.median(values)
        same = speeds.get(f"stock {way}")
        ratio = f"{statistics.median(a / b for a, b in zip(values, same, strict=True)):.2f}" if same else ""
        click.echo(f"{way:26}{median:>12,.1f}{median / stock:>14,.2f}{ratio:>10}")
