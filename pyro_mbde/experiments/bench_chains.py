"""Effective draws per gradient and per second of every kernel: on densities, on models with them, and on the base."""

from __future__ import annotations

import json
import math
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import torch
from numpy.typing import NDArray
from pyro.infer import HMC, NUTS
from torch import Tensor
from tqdm import tqdm

from pyro_mbde._torch_state import seeded, single_thread
from pyro_mbde.cli.forward import PrintingCommand
from pyro_mbde.diagnostics.checks import mixing_report
from pyro_mbde.diagnostics.parameters import coordinates, scalar_parameters
from pyro_mbde.experiments.chain_pictures import plot_chains
from pyro_mbde.experiments.chain_problems import CHAIN_PROBLEMS, as_model, fit_problem
from pyro_mbde.experiments.chain_results import RATES, Record, print_summaries, summarize
from pyro_mbde.mcmc.run import run_mcmc
from pyro_mbde.pictures import check_picture_path, import_arviz, write_picture
from pyro_mbde.private_files import write_atomically

EPSILONS = (0.5, 1.0, 2.0, 5.0)
#: Draws and warmup steps of a chain: the defaults of run_mcmc.
_STEPS, _QUICK_STEPS = (1000, 500), (40, 20)
#: Those of stock kernels, whose steps take up to seconds; the longest tree; seconds in which a run makes its draws.
_STOCK_STEPS, _MAX_TREE_DEPTH, _MAX_SECONDS = (200, 100), 6, 10.0
#: What a stock kernel on smooth gradients is told to expect, by epsilon: no step size reaches 0.8.
_SMOOTH_TARGETS = {0.5: 0.7, 1.0: 0.6, 2.0: 0.5, 5.0: 0.3}


class Way(NamedTuple):
    """A kernel and how it is run.

    Attributes:
        kernel: of run_mcmc, or of Pyro.
        num_chains: chains.
        stock: whether it is Pyro's own.
        smooth: whether the density comes with the gradient of its base.
        max_seeds: seeds at most: it is slow.
    """

    kernel: str
    num_chains: int = 4
    stock: bool = False
    smooth: bool = False
    max_seeds: int = 100


WAYS = {
    "hmc": Way("hmc", max_seeds=3),
    "nuts": Way("nuts", max_seeds=2),
    "lockstep_hmc": Way("lockstep_hmc", 64),
    "random_walk": Way("random_walk", max_seeds=3),
    "lockstep_random_walk": Way("lockstep_random_walk", 64),
    "independence": Way("independence", 64),
    "stock hmc": Way("hmc", 1, stock=True, max_seeds=1),
    "stock nuts": Way("nuts", 1, stock=True, max_seeds=1),
    "stock hmc, smooth": Way("hmc", 1, stock=True, smooth=True, max_seeds=1),
    "stock nuts, smooth": Way("nuts", 1, stock=True, smooth=True, max_seeds=1),
}


@click.command(cls=PrintingCommand)
@click.option(
    "--problem", "names", multiple=True, type=click.Choice(list(CHAIN_PROBLEMS)), help="Several may be named."
)
@click.option("--epsilon", "epsilons", multiple=True, type=float, default=EPSILONS, show_default=True)
@click.option("--kernel", "ways", multiple=True, type=click.Choice(list(WAYS)), help="Several may be named.")
@click.option("--a-priori", is_flag=True, help="Priors in models as of mollify(epsilon, delta=0): half as wide a tilt.")
@click.option("--seeds", type=click.IntRange(1), default=5, show_default=True, help="Slow kernels have one to three.")
@click.option("--quick", is_flag=True, help="Few draws and a short fit, to check that everything runs.")
@click.option("--records", type=click.Path(dir_okay=False, path_type=Path), help="JSON file for every number.")
@click.option("--picture", type=click.Path(dir_okay=False, path_type=Path), help="File for a picture, PNG, PDF or SVG.")
def chains(
    names: tuple[str, ...],
    epsilons: tuple[float, ...],
    ways: tuple[str, ...],
    a_priori: bool,
    seeds: int,
    quick: bool,
    records: Path | None,
    picture: Path | None,
) -> None:
    """Effective draws per gradient and per second of every kernel, on fitted densities and on their base; one thread.

    Of the worst coordinate, and of the worst squared deviation (SQUARES); medians over seeds. X BASE: relative to the
    same kernel on the base, X STOCK: to Pyro's own on the density. PASSED: share of runs that a mixing report passes.
    Random walks and independence have energies in place of gradients.
    """
    if picture is not None:
        check_picture_path(picture)
    measured: list[Record] = []
    with single_thread():
        for name in names or CHAIN_PROBLEMS:
            found = list(measure(name, epsilons, ways or tuple(WAYS), seeds, a_priori=a_priori, quick=quick))
            measured += found
            print_summaries(summarize(found))
            if records is not None:
                _save(measured, records)
    if picture is not None:
        write_picture(plot_chains(summarize(measured)), picture, dpi=100)
        click.echo(str(picture))


def _save(measured: list[Record], path: Path) -> None:
    content = json.dumps(measured, indent=1).encode()
    write_atomically(lambda file: file.write(content), path)


def measure(
    name: str, epsilons: tuple[float, ...], ways: tuple[str, ...], num_seeds: int, *, a_priori: bool, quick: bool
) -> Iterator[Record]:
    """Runs kernels on a problem, for each seed on the base and at each epsilon right after it; yields what they did."""
    problem = CHAIN_PROBLEMS[name]()
    ratio = fit_problem(problem, quick=quick)
    is_prior = problem.pose(problem.base) is not problem.base
    options: dict[str, Any] = {"delta": 0.0} if a_priori and is_prior else {}
    densities: dict[float | None, Any] = {None: problem.base}
    densities |= {epsilon: ratio.mollify(epsilon, **options) for epsilon in epsilons}
    if is_prior:
        ways = tuple(way for way in ways if way != "independence")  # it samples a density alone
    rounds = [(seed, way) for seed in range(num_seeds) for way in ways if seed < WAYS[way].max_seeds]
    for seed, label in tqdm(rounds, desc=name):
        way = WAYS[label]
        for epsilon, density in densities.items():
            if epsilon is None and (way.kernel == "independence" or way.smooth):
                continue  # its proposals, or its gradients, are those of the base
            key: Record = {"problem": name, "epsilon": epsilon, "kernel": label, "seed": seed}
            if way.stock:
                prior = density.with_smooth_gradient() if way.smooth else density
                target = _smooth_target(epsilon) if way.smooth else 0.8
                yield {**key, **run_stock(as_model(problem.pose(prior)), way.kernel, target, seed, quick=quick)}
            else:
                yield {**key, **run_ours(problem.pose(density), way, seed, quick=quick)}


def _smooth_target(epsilon: float | None) -> float:
    return _SMOOTH_TARGETS[min(_SMOOTH_TARGETS, key=lambda one: abs(one - (epsilon or 0.0)))]


def run_ours(posed: Any, way: Way, seed: int, *, quick: bool) -> Record:
    """Runs a kernel of run_mcmc and says what its chains are worth."""
    num_samples, warmup_steps = _QUICK_STEPS if quick else _STEPS
    start = time.process_time()
    made = run_mcmc(
        posed, way.kernel, num_samples, warmup_steps, way.num_chains, seed=seed, progress=False, num_workers=1
    )
    seconds = time.process_time() - start
    stats = {name: value.double() for name, value in made.sample_stats.items()}
    gradients = float(stats["n_steps"].sum()) if "n_steps" in stats else float(num_samples * way.num_chains)
    report = mixing_report(made)
    return {
        **_worth(scalar_parameters(made), gradients, seconds),
        "num_samples": num_samples,
        "passed": float(report.passed),
        "failures": [str(failure) for failure in report.failures],
        "divergences": float(stats["diverging"].sum()) if "diverging" in stats else None,
        **{name: float(stats[name].mean()) if name in stats else None for name in RATES},
    }


def run_stock(model: Callable[[], Tensor], kernel: str, target: float, seed: int, *, quick: bool) -> Record:
    """Runs one chain of Pyro's kernel, as in its documentation, and says what it is worth.

    It ends after some seconds, and its warmup too: a chain that is not through its warmup by then is worth nothing.
    """
    num_samples, warmup_steps = _QUICK_STEPS if quick else _STOCK_STEPS
    limit = 2.0 if quick else _MAX_SECONDS
    classes: dict[str, Any] = {"hmc": HMC, "nuts": NUTS}
    options = {"max_tree_depth": _MAX_TREE_DEPTH} if kernel == "nuts" else {}
    draws: list[dict[str, Tensor]] = []
    start = time.process_time()
    with seeded(seed):
        made = classes[kernel](model, target_accept_prob=target, **options)
        made.setup(warmup_steps)
        params, counted = made.initial_params, _Counted(made.potential_fn)
        for step in range(warmup_steps + num_samples):
            if step == warmup_steps:
                made.potential_fn = counted
            if time.process_time() - start > limit:
                break
            params = made.sample(params)
            if step >= warmup_steps:
                draws.append(
                    {
                        name: made.transforms[name].inv(value) if name in made.transforms else value
                        for name, value in params.items()
                    }
                )
    seconds = time.process_time() - start
    together = {name: torch.stack([one[name] for one in draws]).unsqueeze(0) for name in draws[0]} if draws else {}
    values = {key: value for name, site in together.items() for key, value in coordinates(name, site, 2).items()}
    return {**_worth(values, float(counted.gradients), seconds), "num_samples": len(draws), "passed": None}


class _Counted:
    """A potential energy that counts how often it was differentiated."""

    def __init__(self, potential_fn: Callable[[dict[str, Tensor]], Tensor]) -> None:
        self.potential_fn, self.gradients = potential_fn, 0

    def __call__(self, params: dict[str, Tensor]) -> Tensor:
        self.gradients += any(value.requires_grad for value in params.values())
        return self.potential_fn(params)


def _worth(values: dict[str, NDArray[np.float64]], gradients: float, seconds: float) -> Record:
    """Effective draws in the worst coordinate, and of the worst squared deviation."""
    plain = _least(values.values())
    squares = _least((one - one.mean()) ** 2 for one in values.values())
    per = 1 / gradients if gradients else 0.0
    return {
        "ess": plain,
        "ess_squares": squares,
        "gradients": gradients,
        "seconds": seconds,
        "ess_per_gradient": plain * per,
        "squares_per_gradient": squares * per,
        "ess_per_second": plain / seconds,
    }


def _least(values: Any) -> float:
    """The smallest effective size; 0 where a chain does not move."""
    arviz: Any = import_arviz()
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        sizes = [float(arviz.ess(one)) if one.shape[1] >= 4 else 0.0 for one in values]
    return min((0.0 if math.isnan(size) else size for size in sizes), default=0.0)
