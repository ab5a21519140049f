"""Boosting with unbounded logits, as in the code published with the paper: not private."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from pyro_mbde._checks import argument_error, check_count
from pyro_mbde.density.base import base_location_scale, reference_draws, support_of
from pyro_mbde.density.statistics import BoundedClassifiers
from pyro_mbde.experiments.baselines.common import (
    FittedDensity,
    Trainer,
    check_positive,
    continuous_base,
    describe_epsilon,
)
from pyro_mbde.metrics import Box, quadrature_grid
from pyro_mbde.privacy.group import GroupGuarantee
from pyro_mbde.training.data import to_network_rows
from pyro_mbde.training.weak_learner import WeakLearner

#: How far from 1 the base's mass on the grid may be: a grid straddles the edges of a uniform one.
_TOLERATED_MASS = 0.01
#: Share of the base's mass in the smallest region where the range of the log-ratio is measured.
_MEASURED_MASS = 0.9999
#: Points whose logits are computed at a time.
_CHUNK = 2**15


def published_natural_params(epsilon: float, num_rounds: int) -> Tensor:
    r"""Returns :math:`\theta_t = (\epsilon / (4 + \epsilon))^t` for t = 1..T, float64.

    The schedule of the published code. It would be right for statistics bounded by 1; the paper's, for statistics
    bounded by log 2, has 4 log 2 in place of 4.

    Example:
        >>> published_natural_params(4.0, 2)
        tensor([0.5000, 0.2500], dtype=torch.float64)
    """
    return torch.tensor([(epsilon / (4 + epsilon)) ** index for index in range(1, num_rounds + 1)], dtype=torch.float64)


class UnboundedDensity(FittedDensity):
    r"""The base tilted by unbounded logits: :math:`q(x) = q_0(x) \exp(\sum_t \theta_t z_t(x) - \phi)`.

    phi is computed on a grid over the box, which must hold nearly all of the base and of the result. Draws are made
    from the grid: a cell with the mass of its midpoint, then a point that is uniform in the cell.

    Privacy:
        None, for any epsilon.

    Args:
        base: Q0.
        networks: the classifiers, whose logits are used.
        natural_params: theta, shape ``(T,)``.
        box: lower and upper edge of the cube.
        rows: the table, at which the range of the log-ratio is measured too, shape ``(n, d)``.
    """

    def __init__(
        self, base: Distribution, networks: BoundedClassifiers, natural_params: Tensor, box: Box, rows: Tensor
    ) -> None:
        self.base, self.natural_params = base, natural_params
        self.networks = networks.requires_grad_(False).eval()
        self.log_normalizer = 0.0
        super().__init__(support_of(base), reference_draws(base)[0], GroupGuarantee(math.inf), chunk=_CHUNK)
        with torch.no_grad():
            points, volume = quadrature_grid(box, base.event_shape)
            self._cells = points.reshape(len(points), -1).double()
            self._cell_side = volume ** (1 / self._cells.shape[1])
            log_base = self._log_base(self._cells)
            held_mass = math.exp(float(torch.logsumexp(log_base, 0))) * volume
            if not abs(held_mass - 1) < _TOLERATED_MASS:
                raise ValueError(argument_error("box", "hold nearly all of the base", box))
            log_masses = log_base + self.tilt(self._cells)
            self.log_normalizer = float(torch.logsumexp(log_masses, 0)) + math.log(volume)
            self._cumulative = torch.softmax(log_masses, 0).cumsum(0)
            # The range is measured where the base has nearly all of its mass, and at the rows.
            masses, order = torch.softmax(log_base, 0).sort(descending=True)
            held = order[: int((masses.cumsum(0) < _MEASURED_MASS).sum()) + 1]
            tilts = torch.cat([self.tilt(self._cells[held]), self.tilt(rows.double())])
            self._range = float(tilts.max() - tilts.min())

    @property
    def log_ratio_range(self) -> float:
        """Measured range of log q/q0 in nats: largest less smallest, a lower bound of the true one. Private.

        Measured on the grid points that hold 99.99% of the base's mass in the least volume, and at the table's rows.
        """
        return self._range

    def tilt(self, rows: Tensor) -> Tensor:
        """Returns the sum of the logits, weighted by theta: the log-ratio to the base up to a constant."""
        logits = [self.networks.logits(part.to(self.networks.loc)) for part in torch.split(rows, _CHUNK)]
        tilts: Tensor = torch.cat(logits).double() @ self.natural_params
        return tilts

    def _log_base(self, rows: Tensor) -> Tensor:
        values = rows.to(self.dtype).reshape(-1, *self.event_shape)
        inside: Tensor = self._support.check(values)
        mask = inside.reshape(-1, *(1,) * len(self.event_shape))
        log_base: Tensor = self.base.log_prob(torch.where(mask, values, self._interior)).double()
        return torch.where(inside, log_base, -torch.inf)

    def _log_density(self, rows: Tensor) -> Tensor:
        return self._log_base(rows) + self.tilt(rows) - self.log_normalizer

    def _draw(self, num_draws: int) -> Tensor:
        uniforms = torch.rand(num_draws, dtype=torch.float64) * self._cumulative[-1]
        index = torch.searchsorted(self._cumulative, uniforms, right=True).clamp(max=len(self._cumulative) - 1)
        cells = self._cells[index]
        draws: Tensor = cells + self._cell_side * (torch.rand_like(cells) - 0.5)
        # A cell may reach past an edge of the support; its midpoint, having mass, does not.
        inside: Tensor = self._support.check(draws.to(self.dtype).reshape(-1, *self.event_shape))
        return torch.where(inside.unsqueeze(-1), draws, cells)

    def __repr__(self) -> str:
        """Shows that it is not private, and its shape."""
        return (
            f"UnboundedDensity({describe_epsilon(self.guarantee)}, rounds={len(self.natural_params)}, "
            f"event_shape={tuple(self.event_shape)})"
        )


class UnboundedMBDE(Trainer[UnboundedDensity]):
    r"""Mollified boosting with unbounded logits: the algorithm of the code published with the paper. Not private.

    The sufficient statistics are the logits z_t themselves, where Algorithm 1 has classifiers bounded by log 2, and

    .. math::
        q_T(x) \propto q_0(x) \exp\Bigl(\sum_t \theta_t z_t(x)\Bigr), \qquad
        \theta_t = \Bigl(\frac{\epsilon}{4 + \epsilon}\Bigr)^t .

    Nothing bounds z, so no epsilon fixed beforehand bounds the log-ratio of two tables' densities. It shows how much of
    the fit in published figures comes from that: compare :attr:`UnboundedDensity.log_ratio_range` with epsilon, which
    is the most that log q/q0 may range over for a density of an epsilon-mollifier.

    The network and its training are those of :meth:`pyro_mbde.MBDE.paper`. Draws of Q_{t-1} are made from the grid that
    normalises it, where the published code has a Markov chain.

    Privacy:
        None, for any epsilon.

    Args:
        base: Q0, continuous, of one or two dimensions.
        epsilon: of the schedule, in nats; finite and above 0.
        num_rounds: number of boosting rounds T, at least 1.
        box: lower and upper edge of a cube that holds nearly all of the base and of the rows.
        weak_learner: network and optimiser; the paper's by default. Its link is not used.
        num_samples: draws of Q_{t-1} per round, at least 2; also of P, where ``fit`` is given a distribution.
        seed: for a reproducible fit; ``None`` draws from torch's global generator.
        progress: whether to show a progress bar.

    References:
        Husain, Cranko, Nock. Integral Privacy for Sampling from Mollifier Densities. 2018. Section 5.

    Example:
        >>> import pyro.distributions as dist
        >>> learner = WeakLearner(num_steps=20)
        >>> base = dist.Normal(0.0, 1.0)
        >>> trainer = UnboundedMBDE(base, 0.1, 2, box=(-9.0, 9.0), weak_learner=learner, seed=0, progress=False)
        >>> density = trainer.fit(0.1 * torch.randn(500))
        >>> density
        UnboundedDensity(not private, rounds=2, event_shape=())
    """

    def __init__(
        self,
        base: Distribution,
        epsilon: float,
        num_rounds: int = 3,
        *,
        box: Box,
        weak_learner: WeakLearner | None = None,
        num_samples: int = 10_000,
        seed: int | None = None,
        progress: bool = True,
    ) -> None:
        super().__init__(seed=seed, progress=progress)
        self.base = continuous_base(base)
        if self.base.event_shape.numel() > 2:
            raise ValueError(argument_error("base", "be of one or two dimensions", base))
        self.epsilon = check_positive("epsilon", epsilon)
        self.num_rounds = check_count("num_rounds", num_rounds)
        self.box = _check_cube(box)
        self.weak_learner = WeakLearner.paper() if weak_learner is None else weak_learner
        if not isinstance(self.weak_learner, WeakLearner):
            raise TypeError(argument_error("weak_learner", "be a WeakLearner", weak_learner))
        self.num_samples = check_count("num_samples", num_samples, minimum=2)

    def _bar(self) -> dict[str, Any]:
        return {"total": self.num_rounds * self.weak_learner.num_steps, "desc": "UnboundedMBDE", "unit": "step"}

    def _rows(self, data: Any) -> Tensor:
        return to_network_rows(data, self.base, self.num_samples)

    def _fit(self, rows: Tensor, on_step: Callable[[], object]) -> UnboundedDensity:
        natural_params, spread = published_natural_params(self.epsilon, self.num_rounds), base_location_scale(self.base)
        source: Distribution = self.base
        classifiers: list[BoundedClassifiers] = []
        for index in range(self.num_rounds):
            negatives = source.sample(torch.Size([self.num_samples])).reshape(self.num_samples, -1).to(rows)
            classifiers.append(self.weak_learner.fit(rows, negatives, spread, on_step=on_step).classifier)
            networks = BoundedClassifiers.stack(classifiers)
            source = density = UnboundedDensity(self.base, networks, natural_params[: index + 1], self.box, rows)
        return density

    def __repr__(self) -> str:
        """Shows the settings."""
        return (
            f"UnboundedMBDE(not private, epsilon={self.epsilon:.6g}, num_rounds={self.num_rounds}, box={self.box!r}, "
            f"{self.weak_learner})"
        )


def _check_cube(box: Any) -> Box:
    if not isinstance(box, tuple | list) or len(box) != 2 or not all(isinstance(edge, numbers.Real) for edge in box):
        raise TypeError(argument_error("box", "be a pair of numbers, lower and upper edge", box))
    low, high = float(box[0]), float(box[1])
    if not -math.inf < low < high < math.inf:
        raise ValueError(argument_error("box", "be finite and rise", box))
    return low, high
