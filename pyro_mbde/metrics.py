"""How close a density comes to a target: by quadrature up to two dimensions, by Monte Carlo in any."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import pandas as pd
import torch
from torch import Tensor
from torch.distributions import Distribution

from pyro_mbde._checks import argument_error, check_count, check_number

Box = tuple[float, float]

#: Independent replicates whose scatter tells the error of a quantile.
_NUM_REPLICATES = 20
#: Points whose densities are evaluated at a time: the hidden layers of all of them would fill the memory.
_CHUNK = 2**15


class Estimate(NamedTuple):
    """A number and its standard error; 0 for one by quadrature.

    Attributes:
        value: the estimate.
        standard_error: of the draws it was computed from.
    """

    value: float
    standard_error: float


def quadrature_grid(box: Box, event_shape: torch.Size, points_per_dim: int | None = None) -> tuple[Tensor, float]:
    """Returns the midpoints of a regular grid on a cube, shape ``(n, *event_shape)``, and the volume of a cell.

    Args:
        box: lower and upper edge of the cube.
        event_shape: (), (1,) or (2,).
        points_per_dim: grid points per dimension; defaults to 20,000 in 1-D and 500 in 2-D.

    Example:
        >>> quadrature_grid((0.0, 1.0), torch.Size([]), points_per_dim=2)
        (tensor([0.2500, 0.7500]), 0.5)
    """
    num_dims = max(event_shape.numel(), 1)
    if num_dims > 2:
        raise ValueError(
            argument_error("event_shape", "be (), (1,) or (2,)", tuple(event_shape), "Use Monte Carlo: box=None.")
        )
    low, high = box
    count = points_per_dim or (20_000 if num_dims == 1 else 500)
    step = (high - low) / count
    axis = low + step * (torch.arange(count, dtype=torch.float64) + 0.5)
    points = axis if num_dims == 1 else torch.cartesian_prod(*[axis] * num_dims)
    return points.to(torch.get_default_dtype()).reshape(-1, *event_shape), step**num_dims


def kl_gain(
    target: Distribution,
    base: Distribution,
    density: Distribution,
    box: Box | None = None,
    *,
    num_draws: int = 100_000,
) -> Estimate:
    r"""Returns how much closer a density is to the target than the base is.

    .. math::
        \mathrm{KL}(P, Q_0) - \mathrm{KL}(P, Q) = \mathbb{E}_P[\log q - \log q_0] .

    Privacy:
        This and all other metrics are for known targets and for the table's owner: what is computed on a sensitive
        table, or with the density fitted to it, is not for release.

    Args:
        target: P.
        base: Q0.
        density: Q.
        box: lower and upper edge of a cube that holds almost all of P, for quadrature in one or two dimensions;
            ``None`` for Monte Carlo.
        num_draws: draws of P, where there is no box.

    Returns:
        The gain in nats.

    Example:
        >>> target, base = (torch.distributions.Normal(torch.tensor(mean), torch.tensor(1.0)) for mean in (1.0, 0.0))
        >>> round(kl_gain(target, base, target, (-7.0, 8.0)).value, 4)  # KL(N(1, 1), N(0, 1)) = 1/2
        0.5
    """
    return _mean_under(target, lambda x: _log_prob(density, x) - _log_prob(base, x), box, num_draws)


def negative_log_likelihood(
    target: Distribution, density: Distribution, box: Box | None = None, *, num_draws: int = 100_000
) -> Estimate:
    r"""Returns :math:`-\mathbb{E}_P[\log q]` in nats, by quadrature over a box or on draws of P.

    Arguments are those of :func:`kl_gain`.

    Example:
        >>> normal = torch.distributions.Normal(torch.tensor(0.0), torch.tensor(1.0))
        >>> round(negative_log_likelihood(normal, normal, (-8.0, 8.0)).value, 4)  # log(2 pi e) / 2
        1.4189
    """
    return _mean_under(target, lambda x: -_log_prob(density, x), box, num_draws)


def kl_divergence(
    target: Distribution, density: Distribution, box: Box | None = None, *, num_draws: int = 100_000
) -> Estimate:
    r"""Returns :math:`\mathrm{KL}(P, Q) = \mathbb{E}_P[\log p - \log q]` in nats, by quadrature or on draws of P.

    Arguments are those of :func:`kl_gain`.

    Example:
        >>> target, base = (torch.distributions.Normal(torch.tensor(mean), torch.tensor(1.0)) for mean in (1.0, 0.0))
        >>> round(kl_divergence(target, base, (-7.0, 8.0)).value, 4)
        0.5
    """
    return _mean_under(target, lambda x: _log_prob(target, x) - _log_prob(density, x), box, num_draws)


def total_variation(
    target: Distribution, density: Distribution, box: Box | None = None, *, num_draws: int = 100_000
) -> Estimate:
    r"""Returns the total-variation distance :math:`\mathbb{E}_P[(1 - q/p)_+]`, in [0, 1].

    Arguments are those of :func:`kl_gain`.

    Example:
        >>> uniform = torch.distributions.Uniform(torch.tensor(0.0), torch.tensor(1.0), validate_args=False)
        >>> half = torch.distributions.Uniform(torch.tensor(0.0), torch.tensor(0.5), validate_args=False)
        >>> round(total_variation(half, uniform, (0.0, 1.0)).value, 4)
        0.5
    """

    def shortfall(x: Tensor) -> Tensor:
        return -torch.expm1((_log_prob(density, x) - _log_prob(target, x)).clamp(max=0))

    return _mean_under(target, shortfall, box, num_draws)


def mode_coverage(
    target: Distribution,
    density: Distribution,
    box: Box | None = None,
    *,
    mass: float = 0.95,
    num_draws: int = 100_000,
) -> Estimate:
    r"""Returns the share of the target that the density's smallest region of a given mass covers.

    .. math::
        P\bigl(q(x) > t\bigr) \quad \text{with } t \text{ such that } Q\bigl(q(x) > t\bigr) = \text{mass} .

    The superlevel set :math:`\{q > t\}` is the smallest region that holds ``mass`` of Q. A density that misses modes
    of P covers less of P than of itself. On draws, the standard error is that of 20 independent replicates, so it holds
    the error of the level t too.

    Args:
        target: P.
        density: Q.
        box: lower and upper edge of a cube that holds almost all of P and of Q, for quadrature; ``None`` for draws.
        mass: in (0, 1).
        num_draws: draws of P and of Q, at least 400.

    References:
        Husain, Cranko, Nock. Integral Privacy for Sampling from Mollifier Densities. 2018. Section 5, whose text writes
        the set the other way round, and whose figures are computed as here.

    Example:
        >>> normal = torch.distributions.Normal(torch.tensor(0.0), torch.tensor(1.0))
        >>> abs(mode_coverage(normal, normal).value - 0.95) < 0.01
        True
    """
    mass = check_number("mass", mass, "be in (0, 1)", lambda value: 0 < value < 1)
    if box is not None:
        return Estimate(_coverage_by_quadrature(target, density, box, mass), 0.0)
    size = check_count("num_draws", num_draws, minimum=400) // _NUM_REPLICATES
    shape = torch.Size([_NUM_REPLICATES * size])
    with torch.no_grad():
        of_density, of_target = (
            _log_prob(density, source.sample(shape)).reshape(_NUM_REPLICATES, size) for source in (density, target)
        )
    levels = torch.quantile(of_density, 1 - mass, dim=1, keepdim=True, interpolation="lower")
    # A density with plateaus may hold much of Q exactly at the level: as much of them is taken as makes up the mass.
    above, at_level = ((relation(of_density, levels)).double().mean(1) for relation in (torch.gt, torch.eq))
    share = ((mass - above) / at_level).clamp(0, 1)
    covered = (of_target > levels).double().mean(1) + share * (of_target == levels).double().mean(1)
    return Estimate(float(covered.mean()), float(covered.std() / math.sqrt(_NUM_REPLICATES)))


def _coverage_by_quadrature(target: Distribution, density: Distribution, box: Box, mass: float) -> float:
    with torch.no_grad():
        points, _ = quadrature_grid(box, target.event_shape)
        of_density, of_target = _log_prob(density, points), torch.softmax(_log_prob(target, points), 0)
    order = of_density.argsort(descending=True)
    held = torch.softmax(of_density, 0)[order].cumsum(0)
    level = of_density[order][int(torch.searchsorted(held, mass * held[-1]).clamp(max=len(held) - 1))]
    # Of a plateau at the level, as much as makes up the mass.
    above, at_level = of_density > level, of_density == level
    inside = torch.softmax(of_density, 0)
    share = ((mass - inside[above].sum()) / inside[at_level].sum()).clamp(0, 1)
    return float(of_target[above].sum() + share * of_target[at_level].sum())


def compare(
    target: Distribution,
    densities: Distribution | Sequence[Distribution] | Mapping[str, Distribution],
    box: Box | None = None,
    *,
    num_draws: int = 100_000,
) -> pd.DataFrame:
    """Returns all metrics of one density or of several, one row each.

    Args:
        target: P.
        densities: Q; or several, in a list or by name.
        box: as for :func:`kl_gain`.
        num_draws: as for :func:`kl_gain` and :func:`mode_coverage`.

    Returns:
        Columns ``nll``, ``kl``, ``total_variation`` and ``mode_coverage``, each followed by its standard error in a
        column with ``_se`` added to its name.

    Example:
        >>> normal = torch.distributions.Normal(torch.tensor(0.0), torch.tensor(1.0))
        >>> compare(normal, {"itself": normal}, (-8.0, 8.0)).columns.tolist()[:4]
        ['nll', 'nll_se', 'kl', 'kl_se']
    """
    if isinstance(densities, Distribution):
        densities = [densities]
    named = dict(densities) if isinstance(densities, Mapping) else dict(enumerate(densities))
    rows = []
    for density in named.values():
        estimates = {
            "nll": negative_log_likelihood(target, density, box, num_draws=num_draws),
            "kl": kl_divergence(target, density, box, num_draws=num_draws),
            "total_variation": total_variation(target, density, box, num_draws=num_draws),
            "mode_coverage": mode_coverage(target, density, box, num_draws=num_draws),
        }
        rows.append(
            {
                column: number
                for name, estimate in estimates.items()
                for column, number in ((name, estimate.value), (f"{name}_se", estimate.standard_error))
            }
        )
    return pd.DataFrame(rows, index=pd.Index(list(named), name="density"))


def _mean_under(
    target: Distribution, function: Callable[[Tensor], Tensor], box: Box | None, num_draws: int
) -> Estimate:
    """The mean of a function under the target: by quadrature over a box, or on draws."""
    with torch.no_grad():
        if box is None:
            count = check_count("num_draws", num_draws, minimum=2)
            values = function(target.sample(torch.Size([count])))
            return Estimate(float(values.mean()), float(values.std() / math.sqrt(count)))
        points, _ = quadrature_grid(box, target.event_shape)
        weights = _log_prob(target, points).exp()
        held = weights > 0  # a function that is infinite where the target vanishes does not count there
        return Estimate(float((weights[held] * function(points[held])).sum() / weights.sum()), 0.0)


def _log_prob(distribution: Distribution, points: Tensor) -> Tensor:
    """Log-densities in float64, a part of the points at a time."""
    return torch.cat([distribution.log_prob(part).double() for part in torch.split(points, _CHUNK)])
