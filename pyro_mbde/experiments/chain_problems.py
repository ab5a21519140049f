"""What the bench of chains samples: two densities, and two models in which a density is a prior."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_mbde._torch_state import seeded
from pyro_mbde.experiments.problems import DIMENSIONS, mixture_1d, ring_tight
from pyro_mbde.training.density_ratio import DensityRatio, LogRatio

#: Rows of the table that each density is fitted to.
_NUM_ROWS, _NUM_QUICK_ROWS = 10_000, 1000
#: Known errors of the readings of eight effects: about as wide as what the density learned (deviation .31), and wider.
_ERRORS = (0.3, 0.3, 0.4, 0.4, 0.5, 0.5, 0.6, 0.8)
#: Readings of the regression, at even places in [-1, 1], and their error.
_NUM_READINGS, _ERROR = 10, 0.5


class ChainProblem(NamedTuple):
    """A density to fit, and what is sampled with it.

    Attributes:
        name: as on the command line.
        target: what rows of the table are drawn from.
        base: public base of the density.
        pose: from a density, or its base, to what is sampled: itself, or a model in which it is the prior.
    """

    name: str
    target: Any
    base: Any
    pose: Callable[[Any], Any]


def _itself(density: Any) -> Any:
    return density


def _ring() -> ChainProblem:
    """Eight normals on a circle, in two dimensions."""
    problem = ring_tight()
    return ChainProblem(problem.name, problem.target, problem.base, _itself)


def _mixture() -> ChainProblem:
    """Four normals in ten dimensions."""
    problem = DIMENSIONS["mixture-10d"]()
    return ChainProblem(problem.name, problem.target, problem.base, _itself)


def _effects() -> ChainProblem:
    """Eight effects, each with the density as its prior, one reading each, and one shift that all readings share."""
    problem = mixture_1d()
    errors = torch.tensor(_ERRORS)
    with seeded(18):
        readings = problem.target.sample(errors.shape) + 0.2 + errors * torch.randn(errors.shape)

    def pose(prior: Any) -> Callable[[], Tensor]:
        def model() -> Tensor:
            shift = pyro.sample("shift", dist.Normal(0.0, 0.5))
            with pyro.plate("effects", len(readings)):
                effect: Tensor = pyro.sample("effect", prior)
                pyro.sample("reading", dist.Normal(effect + shift, errors), obs=readings)
            return effect

        return model

    return ChainProblem("effects", problem.target, problem.base, pose)


def _regression() -> ChainProblem:
    """Readings along a parabola whose three coefficients have the density as their prior.

    The table holds coefficients of earlier curves, which are of three kinds: normals of deviation .3.
    """
    centres = torch.tensor([[0.8, 0.5, -0.3], [-0.6, 0.9, 0.4], [0.2, -0.8, 0.0]])
    kinds: Any = dist.Normal(centres, 0.3)
    target = dist.MixtureSameFamily(dist.Categorical(torch.tensor([0.5, 0.3, 0.2])), kinds.to_event(1))
    base: Any = dist.Normal(torch.zeros(3), torch.ones(3))
    places = torch.linspace(-1, 1, _NUM_READINGS)
    powers = torch.stack([torch.ones_like(places), places, places.square()])
    with seeded(18):
        readings = target.sample() @ powers + _ERROR * torch.randn(_NUM_READINGS)

    def pose(prior: Any) -> Callable[[], Tensor]:
        def model() -> Tensor:
            coefficients: Tensor = pyro.sample("coefficients", prior)
            with pyro.plate("readings", _NUM_READINGS):
                pyro.sample("reading", dist.Normal(coefficients @ powers, _ERROR), obs=readings)
            return coefficients

        return model

    return ChainProblem("regression", target, base.to_event(1), pose)


CHAIN_PROBLEMS: dict[str, Callable[[], ChainProblem]] = {
    "ring-tight": _ring,
    "mixture-10d": _mixture,
    "effects": _effects,
    "regression": _regression,
}


def as_model(posed: Any) -> Callable[[], Tensor]:
    """Returns a Pyro model of what is sampled: stock kernels take nothing else."""
    return functools.partial(_sample, posed) if isinstance(posed, torch.distributions.Distribution) else posed


def _sample(density: Any) -> Tensor:
    drawn: Tensor = pyro.sample("x", density)
    return drawn


def fit_problem(problem: ChainProblem, *, quick: bool) -> LogRatio:
    """Fits the density of a problem; a quick fit is poor."""
    trainer = DensityRatio(problem.base, seed=0, progress=False)
    if quick:
        trainer.weak_learner = dataclasses.replace(trainer.weak_learner, num_steps=60)
        trainer.ensemble_size = 2
    with seeded(0):
        rows = problem.target.sample(torch.Size([_NUM_QUICK_ROWS if quick else _NUM_ROWS]))
    return trainer.fit(rows)
