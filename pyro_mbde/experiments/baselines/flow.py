"""A normalising flow trained with differential privacy: density and draws, both exact."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import torch
from pyro.distributions import constraints
from torch import Tensor, nn
from torch.distributions import Distribution

from pyro_mbde._checks import check_count
from pyro_mbde.density.base import base_location_scale, reference_draws
from pyro_mbde.density.flow_copula import zuko
from pyro_mbde.experiments.baselines.common import FittedDensity, check_scale, check_sizes, describe_epsilon
from pyro_mbde.experiments.baselines.dp_sgd import PrivateTraining
from pyro_mbde.experiments.baselines.private_trainer import PrivateTrainer
from pyro_mbde.privacy.group import GroupGuarantee

#: Splines move values up to here, in units of the base's spread; further out the flow is the identity.
_BOUND = 8.0


class DPFlow(PrivateTrainer["FlowDensity"]):
    r"""A neural spline flow, trained by private gradient descent.

    The flow carries the table, standardised by the base's public spread, to a standard normal: autoregressive
    transformations scale each coordinate by a monotone spline on [-8, 8], whose knots a small network computes from the
    coordinates before it; further out they are the identity. It maximises the likelihood by DP-SGD
    (:class:`~pyro_mbde.experiments.baselines.dp_sgd.PrivateSteps`) under Adam, whose rate falls to 0 along a cosine.
    The transformations are zuko's.

    Privacy:
        The density has the guarantee, so it may be handed out, with any number of draws: see
        :class:`~pyro_mbde.privacy.group.GroupGuarantee`. Rows are added or left out; that their number is public is
        Opacus's convention. A seed that others know voids the guarantee:
        seeded fits are for experiments. The noise is not cryptographic: a baseline to compare with.

    Args:
        base: public continuous base distribution; the density is of all reals even where the base's support is not.
        epsilon: of the density, in nats, in (0, inf]; ``inf`` for no noise.
        delta: in (0, 1).
        group_size: rows added or left out that are protected together, at least 1; ``None`` for all of them exchanged,
            their number being public.
        num_layers: transformations, at least 1.
        hidden_sizes: widths of the hidden layers of a transformation's network; of no influence in one dimension.
        num_steps: gradient steps, at least 1.
        batch_size: expected rows of a step, at least 1.
        learning_rate: of Adam, at the start, from 1e-30 to 1e30.
        max_grad_norm: norm that a row's gradient is clipped to, from 1e-30 to 1e30. Gradients of a standardised
            log-density have norms of 10 to 40; far smaller bounds favour the rows in the middle, and the density comes
            out too narrow.
        num_samples: rows to draw where ``fit`` is given a distribution.
        seed: for a reproducible fit; ``None`` draws from torch's global generator.
        progress: whether to show a progress bar.

    References:
        Durkan, Bekasov, Murray, Papamakarios. Neural Spline Flows. 2019. Section 3. Abadi, Chu, Goodfellow, McMahan,
        Mironov, Talwar, Zhang. Deep Learning with Differential Privacy. 2016.

    Example:
        >>> import pyro.distributions as dist
        >>> base = dist.Normal(torch.zeros(2), torch.ones(2)).to_event(1)
        >>> flow = DPFlow(base, epsilon=1.0, num_steps=20, batch_size=50, seed=0, progress=False)
        >>> density = flow.fit(torch.randn(500, 2) + 2)
        >>> density.guarantee
        GroupGuarantee(epsilon=1.0, delta=1e-05, group_size=1, replaced=False)
        >>> density.log_prob(density.sample((3,))).shape
        torch.Size([3])
    """

    _description = "private flow"

    def __init__(
        self,
        base: Distribution,
        epsilon: float,
        *,
        delta: float = 1e-5,
        group_size: int | None = 1,
        num_layers: int = 2,
        hidden_sizes: Sequence[int] = (16, 16),
        num_steps: int = 500,
        batch_size: int = 500,
        learning_rate: float = 0.01,
        max_grad_norm: float = 20.0,
        num_samples: int = 10_000,
        seed: int | None = None,
        progress: bool = True,
    ) -> None:
        training = PrivateTraining(epsilon, delta, group_size, num_steps, batch_size, max_grad_norm)
        super().__init__(base, training, num_samples=num_samples, seed=seed, progress=progress)
        self.num_layers = check_count("num_layers", num_layers)
        self.hidden_sizes = check_sizes("hidden_sizes", hidden_sizes)
        self.learning_rate = check_scale("learning_rate", learning_rate)

    def _train(self, rows: Tensor, on_step: Callable[[], object]) -> FlowDensity:
        flow = SplineFlow(rows.shape[1], self.num_layers, self.hidden_sizes).to(rows)
        optimizer = torch.optim.Adam(flow.parameters(), lr=self.learning_rate)
        steps = self.training.start(flow, optimizer, rows)
        for index in range(self.training.num_steps):
            optimizer.param_groups[0]["lr"] = self._decay(index) * self.learning_rate
            steps.step(steps.sample(), torch.neg)
            on_step()
        self.accountant = steps.accountant
        return FlowDensity(self.base, cast("SplineFlow", steps.result()), self.training.guarantee())

    def __repr__(self) -> str:
        """Shows the settings, which are public."""
        return f"DPFlow(num_layers={self.num_layers}, hidden_sizes={self.hidden_sizes}, {self.training})"


class FlowDensity(FittedDensity):
    """The density of a flow, from :meth:`DPFlow.fit`: what the flow carries to a standard normal.

    Densities and draws are exact, and computed in float64.

    Privacy:
        Carries :attr:`guarantee`, as a whole: draws, densities and weights.

    Args:
        base: public base distribution, whose spread standardises the values and whose event shape and dtype they have.
        flow: the trained flow.
        guarantee: of the flow.
    """

    def __init__(self, base: Distribution, flow: SplineFlow, guarantee: GroupGuarantee) -> None:
        self.flow = flow.double()
        self._spread = base_location_scale(base)
        support: Any = constraints.real_vector if base.event_shape else constraints.real
        super().__init__(support, reference_draws(base)[0], guarantee)

    def _log_density(self, rows: Tensor) -> Tensor:
        log_density: Tensor = self.flow((rows - self._spread.loc) / self._spread.scale)
        return log_density - self._spread.scale.log().sum()

    def _draw(self, num_draws: int) -> Tensor:
        loc, scale = self._spread
        latent = torch.randn(num_draws, len(loc), dtype=loc.dtype, device=loc.device)
        return torch.cat([self.flow.inverse(part) for part in torch.split(latent, self._chunk)]) * scale + loc

    def __repr__(self) -> str:
        """Shows the guarantee and the shape, which are public."""
        return f"FlowDensity({describe_epsilon(self.guarantee)}, event_shape={tuple(self.event_shape)})"


class SplineFlow(nn.Module):
    r"""A neural spline flow from the data to a standard normal, as its log-density. It starts as the identity.

    Args:
        num_dims: d.
        num_layers: autoregressive transformations.
        hidden_sizes: widths of the hidden layers of each.
        num_bins: of a spline.
    """

    def __init__(self, num_dims: int, num_layers: int, hidden_sizes: Sequence[int], num_bins: int = 8) -> None:
        super().__init__()
        spline = partial(zuko("zuko.transforms", "baselines").MonotonicRQSTransform, bound=_BOUND)
        shapes = [(num_bins,), (num_bins,), (num_bins - 1,)]
        options = {"hidden_features": hidden_sizes, "activation": nn.Tanh} if num_dims > 1 else {}
        flow = zuko("zuko.flows", "baselines").MAF(
            num_dims, transforms=num_layers, univariate=spline, shapes=shapes, **options
        )
        self.transform = flow.transform
        for layer in self.transform.transforms:
            last = layer.hyper[-1] if num_dims > 1 else layer.phi
            for parameter in last.parameters():
                nn.init.zeros_(parameter)

    def forward(self, value: Tensor) -> Tensor:
        """Log-density at values of shape ``(..., d)``."""
        latent, log_jacobian = self.transform().call_and_ladj(value)
        log_density: Tensor = log_jacobian - (latent.square() + math.log(2 * math.pi)).sum(-1) / 2
        return log_density

    def inverse(self, latent: Tensor) -> Tensor:
        """Carries the standard normal to the data, shape ``(..., d)``."""
        value: Tensor = self.transform().inv(latent)
        return value
