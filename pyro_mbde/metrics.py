"""How close a density comes to a target."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Distribution

from pyro_mbde._runtime import message


def quadrature_grid(
    box: tuple[float, float], event_shape: torch.Size, points_per_dim: int | None = None
) -> tuple[Tensor, float]:
    """Returns the midpoints of a regular grid on a cube, and the volume of a cell.

    Args:
        box: lower and upper edge of the cube.
        event_shape: (), (1,) or (2,).
        points_per_dim: grid points per dimension; defaults to 20,000 in 1-D and 500 in 2-D.

    Returns:
        Points of shape ``(n, *event_shape)``, and the cell's volume.

    Raises:
        ValueError: the event has more than two dimensions, for which a grid is no way to integrate.

    Example:
        >>> quadrature_grid((0.0, 1.0), torch.Size([]), points_per_dim=2)
        (tensor([0.2500, 0.7500]), 0.5)
    """
    num_dims = max(event_shape.numel(), 1)
    if num_dims > 2:
        raise ValueError(message("event_shape", "be (), (1,) or (2,)", tuple(event_shape)))
    low, high = box
    count = points_per_dim or (20_000 if num_dims == 1 else 500)
    step = (high - low) / count
    axis = low + step * (torch.arange(count, dtype=torch.float64) + 0.5)
    points = axis if num_dims == 1 else torch.cartesian_prod(*[axis] * num_dims)
    return points.to(torch.get_default_dtype()).reshape(-1, *event_shape), step**num_dims


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

    Raises:
        ValueError: the event has more than two dimensions.

    Example:
        >>> target, base = (torch.distributions.Normal(torch.tensor(mean), torch.tensor(1.0)) for mean in (1.0, 0.0))
        >>> round(kl_gain(target, base, target, (-7.0, 8.0)), 4)  # KL(N(1, 1), N(0, 1)) = 1/2
        0.5
    """
    points, volume = quadrature_grid(box, target.event_shape)
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
