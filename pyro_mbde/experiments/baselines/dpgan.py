"""A generative adversarial network trained with differential privacy (DPGAN)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from pyro.distributions import constraints
from torch import Tensor, nn
from torch.distributions import Distribution

from pyro_mbde._checks import check_count
from pyro_mbde.density.base import base_location_scale, reference_draws
from pyro_mbde.experiments.baselines.common import FittedDensity, check_scale, check_sizes, describe_epsilon
from pyro_mbde.experiments.baselines.dp_sgd import PrivateTraining
from pyro_mbde.experiments.baselines.kde import KDEDensity
from pyro_mbde.experiments.baselines.private_trainer import PrivateTrainer
from pyro_mbde.privacy.group import GroupGuarantee

#: Smallest bandwidth, in units of the base's spread, for a generator that always draws the same.
_MIN_BANDWIDTH = 1e-3


class DPGAN(PrivateTrainer["GeneratorDensity"]):
    r"""A Wasserstein generative adversarial network whose critic is trained by private gradient descent.

    The critic f, a small network with weights in [-c, c], and the generator G play

    .. math::
        \min_G \max_f \; \mathbb{E}_P[f(x)] - \mathbb{E}_{z \sim N(0, I)}[f(G(z))] .

    Only the critic sees the table. An example is a pair of a row and a draw of the generator, with the loss
    :math:`f(G(z_i)) - f(x_i)`, so that clipping holds what one row does to a step
    (:class:`~pyro_mbde.experiments.baselines.dp_sgd.PrivateSteps`). The generator learns from the critic alone, by
    post-processing. Both take RMSprop, with rates that fall to 0 along a cosine: at constant ones they circle each
    other to the end. The defaults of batch, delta and steps are those of the method's authors; the paper's clipping of
    weights, from which they derive a bound of the gradients, is kept beside that of the gradients themselves.

    Privacy:
        The density has the guarantee, so it may be handed out, with any number of draws: see
        :class:`~pyro_mbde.privacy.group.GroupGuarantee`. Rows are added or left out; that their number is public is
        Opacus's convention. A seed that others know voids the guarantee:
        seeded fits are for experiments. The noise is not cryptographic: a baseline to compare with.

    Args:
        base: public continuous base distribution; its spread standardises the rows.
        epsilon: of the density, in nats, in (0, inf]; ``inf`` for no noise.
        delta: in (0, 1).
        group_size: rows added or left out that are protected together, at least 1; ``None`` for all of them exchanged,
            their number being public.
        num_steps: the critic's gradient steps, at least 1.
        batch_size: expected rows of a step, at least 1.
        critic_steps: steps of the critic for one of the generator, at least 1.
        latent_dim: dimensions of z, at least 1.
        critic_sizes: widths of the critic's hidden layers.
        generator_sizes: widths of the generator's hidden layers.
        critic_learning_rate: of the critic's RMSprop, at the start, from 1e-30 to 1e30.
        generator_learning_rate: of the generator's RMSprop, at the start, from 1e-30 to 1e30.
        clip: c, from 1e-30 to 1e30.
        max_grad_norm: norm that a pair's gradient is clipped to, from 1e-30 to 1e30.
        num_density_draws: draws of the generator that ``log_prob`` is estimated from, at least 2.
        num_samples: rows to draw where ``fit`` is given a distribution.
        seed: for a reproducible fit; ``None`` draws from torch's global generator.
        progress: whether to show a progress bar.

    References:
        Xie, Lin, Wang, Wang, Zhou. Differentially Private Generative Adversarial Network. 2018. Algorithm 1. Arjovsky,
        Chintala, Bottou. Wasserstein GAN. 2017. Algorithm 1.

    Example:
        >>> import pyro.distributions as dist
        >>> base = dist.Normal(torch.zeros(2), torch.ones(2)).to_event(1)
        >>> gan = DPGAN(base, epsilon=10.0, num_steps=20, seed=0, progress=False)
        >>> density = gan.fit(torch.randn(500, 2) + 2)
        >>> density.guarantee
        GroupGuarantee(epsilon=10.0, delta=0.1, group_size=1, replaced=False)
        >>> density.sample((3,)).shape
        torch.Size([3, 2])
    """

    _description = "private GAN"

    def __init__(
        self,
        base: Distribution,
        epsilon: float,
        *,
        delta: float = 0.1,
        group_size: int | None = 1,
        num_steps: int = 10_000,
        batch_size: int = 128,
        critic_steps: int = 5,
        latent_dim: int = 8,
        critic_sizes: Sequence[int] = (64, 64),
        generator_sizes: Sequence[int] = (64, 64),
        critic_learning_rate: float = 2e-3,
        generator_learning_rate: float = 2e-3,
        clip: float = 0.1,
        max_grad_norm: float = 1.0,
        num_density_draws: int = 2000,
        num_samples: int = 10_000,
        seed: int | None = None,
        progress: bool = True,
    ) -> None:
        training = PrivateTraining(epsilon, delta, group_size, num_steps, batch_size, max_grad_norm)
        super().__init__(base, training, num_samples=num_samples, seed=seed, progress=progress)
        self.critic_steps = check_count("critic_steps", critic_steps)
        self.latent_dim = check_count("latent_dim", latent_dim)
        self.critic_sizes = check_sizes("critic_sizes", critic_sizes)
        self.generator_sizes = check_sizes("generator_sizes", generator_sizes)
        self.critic_learning_rate = check_scale("critic_learning_rate", critic_learning_rate)
        self.generator_learning_rate = check_scale("generator_learning_rate", generator_learning_rate)
        self.clip = check_scale("clip", clip)
        self.num_density_draws = check_count("num_density_draws", num_density_draws, minimum=2)

    def _train(self, rows: Tensor, on_step: Callable[[], object]) -> GeneratorDensity:
        generator = _network(self.latent_dim, self.generator_sizes, rows.shape[1]).to(rows)
        critic = _network(rows.shape[1], self.critic_sizes, 1).to(rows)
        weights = list(critic.parameters())
        critic_optimizer = torch.optim.RMSprop(weights, lr=self.critic_learning_rate)
        generator_optimizer = torch.optim.RMSprop(generator.parameters(), lr=self.generator_learning_rate)
        steps = self.training.start(critic, critic_optimizer, rows)
        for index in range(self.training.num_steps):
            critic_optimizer.param_groups[0]["lr"] = self._decay(index) * self.critic_learning_rate
            generator_optimizer.param_groups[0]["lr"] = self._decay(index) * self.generator_learning_rate
            real = steps.sample()
            with torch.no_grad():
                drawn = generator(torch.randn(len(real), self.latent_dim).to(rows))
            steps.step(torch.stack([drawn, real], 1), _pair_losses)
            with torch.no_grad():
                for weight in weights:
                    weight.clamp_(-self.clip, self.clip)
            if (index + 1) % self.critic_steps == 0:
                scores = critic(generator(torch.randn(self.training.batch_size, self.latent_dim).to(rows)))
                generator_optimizer.zero_grad()
                torch.autograd.backward(-scores.mean(), inputs=list(generator.parameters()))
                generator_optimizer.step()
            on_step()
        self.accountant = steps.accountant
        return GeneratorDensity(
            self.base,
            generator.requires_grad_(False).eval(),
            self.training.guarantee(),
            num_density_draws=self.num_density_draws,
        )

    def __repr__(self) -> str:
        """Shows the settings, which are public."""
        return f"DPGAN({self.training})"


class GeneratorDensity(FittedDensity):
    r"""What a generator draws, from :meth:`DPGAN.fit`.

    Draws are the generator's. It has no density that could be computed, so ``log_prob`` is the usual stand-in: a normal
    kernel estimate from m of its draws, made once, with Scott's bandwidths :math:`h_j = s_j\, m^{-1/(d + 4)}` from
    their standard deviations. It is smoother than what is drawn, the more so the higher d. Being computed from draws,
    it has their guarantee.

    Privacy:
        Carries :attr:`guarantee`, as a whole: draws, densities and weights.

    Args:
        base: public base distribution, whose spread is the generator's unit and whose event shape and dtype the draws
            have.
        generator: maps standard normals of shape ``(n, latent_dim)`` to ``(n, d)``.
        guarantee: of the generator.
        num_density_draws: m, at least 2.

    References:
        Goodfellow, Pouget-Abadie, Mirza, Xu, Warde-Farley, Ozair, Courville, Bengio. Generative Adversarial Nets. 2014.
        Section 5. Scott. Multivariate Density Estimation. 1992. Section 6.3.
    """

    def __init__(
        self,
        base: Distribution,
        generator: nn.Sequential,
        guarantee: GroupGuarantee,
        *,
        num_density_draws: int = 2000,
    ) -> None:
        num_density_draws = check_count("num_density_draws", num_density_draws, minimum=2)
        self.generator = generator
        self._spread = base_location_scale(base)
        interior = reference_draws(base)[0]
        support: Any = constraints.real_vector if base.event_shape else constraints.real
        super().__init__(support, interior, guarantee)
        with torch.no_grad():
            centres = self._draw(num_density_draws)
        scott = centres.std(0) * num_density_draws ** (-1 / (centres.shape[1] + 4))
        #: Of the kernels, shape ``(d,)``.
        self.bandwidth: Tensor = scott.maximum(_MIN_BANDWIDTH * self._spread.scale)
        if not bool(torch.isfinite(self.bandwidth).all()):
            raise ValueError("generator must draw finite numbers, got infinite ones. Lower generator_learning_rate.")
        self._kernels = KDEDensity(centres, self.bandwidth.square().diag(), interior.double())

    def _log_density(self, rows: Tensor) -> Tensor:
        return self._kernels.log_prob(rows.reshape(-1, *self.event_shape))

    def _draw(self, num_draws: int) -> Tensor:
        weight = next(self.generator.parameters())
        latent = torch.randn(num_draws, weight.shape[1], dtype=weight.dtype, device=weight.device)
        draws: Tensor = self.generator(latent).double()
        return draws * self._spread.scale + self._spread.loc

    def __repr__(self) -> str:
        """Shows the guarantee and the shape, which are public."""
        return f"GeneratorDensity({describe_epsilon(self.guarantee)}, event_shape={tuple(self.event_shape)})"


def _pair_losses(scores: Tensor) -> Tensor:
    """The critic's losses from its scores of pairs, a draw and a row; shape ``(m, 2, 1)`` to ``(m,)``."""
    return scores[:, 0, 0] - scores[:, 1, 0]


def _network(num_inputs: int, hidden_sizes: Sequence[int], num_outputs: int) -> nn.Sequential:
    sizes = [num_inputs, *hidden_sizes]
    hidden = [layer for pair in zip(sizes, sizes[1:], strict=False) for layer in (nn.Linear(*pair), nn.LeakyReLU(0.01))]
    return nn.Sequential(*hidden, nn.Linear(sizes[-1], num_outputs))
