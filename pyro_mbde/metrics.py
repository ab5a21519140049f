"""How close a density comes to a target."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Distribution


def quadrature_grid(box: tuple[float, float], num_dims: int, points_per_dim: int | None = None) -> tuple[Tensor, float]:
    """Returns the midpoints of a regular grid on a cube, and the volume of a cell.

    Args:
        box: lower and upper edge of the cube.
        num_dims: 1 or 2.
        points_per_dim: grid points per dimension; defaults to 20,000 in 1-D and 500 in 2-D.

    Returns:
        Points of shape ``(n,)`` in 1-D or ``(n, 2)`` in 2-D, and the cell's volume.
    """
    low, high = box
    count = points_per_dim or (20_000 if num_dims == 1 else 500)
    step = (high - low) / count
    axis = low + step * (torch.arange(count, dtype=torch.float64) + 0.5)
    if num_dims == 1:
        return axis.to(torch.get_default_dtype()), step
    points = torch.cartesian_prod(*[axis] * num_dims)
    return points.to(torch.get_default_dtype()), step**num_dims


def kl_gain(target: Distribution, base: Distribution, density: Distribution, box: tuple[float, float]) -> float:
    r"""Returns how much closer a density is to the target than the base is, by quadrature.

    .. math::
        \mathrm{KL}(P, Q_0) - \mathrm{KL}(P, Q) = \mathbb{E}_P[\log q - \log q_0] .

    Privacy:
        For known targets, as in experiments. Computed on a sensitive table's density it is not for release.

    Args:
        target: P, with event shape (), (1,) or (2,).
        base: Q0.
        density: Q.
        box: lower and upper edge of a cube that holds almost all of P.

    Returns:
        The gain in nats.
    """
    points, volume = quadrature_grid(box, max(target.event_shape.numel(), 1))
    gain = mass = 0.0
    with torch.no_grad():
        for part in torch.split(
            points, 2**15
        ):  # a part at a time: the network's hidden layers of all of them fill the memory
            weights = target.log_prob(part).double().exp() * volume
            log_ratio = density.log_prob(part).double() - base.log_prob(part).double()
            gain += float((weights * log_ratio)[weights > 0].sum())
            mass += float(weights.sum())
    return gain / mass
