"""Private gradient descent, by Opacus: the noise that a guarantee needs, and the steps that take it."""

from __future__ import annotations

import copy
import functools
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from pyro_mbde._checks import argument_error, check_count, check_epsilon, check_number
from pyro_mbde.experiments.baselines.common import added_or_left_out, check_scale, group_guarantee, require
from pyro_mbde.privacy.group import GroupGuarantee, check_group_size, record_budget
from pyro_mbde.privacy.zcdp import zcdp_rho

#: Rényi orders beyond Opacus's own, which end at 63: small epsilons need them. Its binomials overflow past 1029.
_LARGE_ORDERS = (72, 88, 112, 144, 192, 256, 352, 512, 720, 1024)
#: Opacus's bisection stops this far below the epsilon asked for, as a share of it.
_TOLERANCE = 0.005
#: Epsilons of one row that Opacus is asked for: outside, its bisection meets the end of a float's precision.
_MIN_EPSILON, _MAX_EPSILON = 1e-6, 1e6
#: Deviation of noise in weights of float32.
_MAX_NOISE = 1e30


def noise_multiplier(epsilon: float, delta: float, group_size: int, sample_rate: float, num_steps: int) -> float:
    r"""Returns the smallest known noise of DP-SGD that gives a group of rows a guarantee.

    A step adds normal noise of deviation :math:`\sigma C` to a sum of gradients of norm at most C, over a Poisson
    sample of the rows. Two bounds are sound, and the smaller :math:`\sigma` is returned.

    - **Amplified**: Opacus's Rényi accountant, at what :func:`~pyro_mbde.privacy.group.record_budget` leaves to one
      row. Its orders end near 1000, so that the smallest epsilons are out of its reach.
    - **Plain**: T steps are :math:`\rho = g^2 T/(2 \sigma^2)` zCDP for a group of g rows, so that
      :math:`\sigma = g \sqrt{T/(2 \rho)}` suffices, whatever the sample rate. Proof: docs/proofs.md, *Subsampled
      gradient steps without amplification*.

    Rows are added or left out. That the sample rate is public although it holds the number of rows is Opacus's
    convention, kept here.

    Args:
        epsilon: of the group, over all steps, in nats, in (0, inf]; ``inf`` for no noise.
        delta: of the group, in (0, 1).
        group_size: rows protected together, at least 1.
        sample_rate: probability of a row to be in a step, in (0, 1].
        num_steps: T, at least 1.

    Returns:
        The noise's deviation :math:`\sigma`, in units of the gradients' largest norm.

    References:
        Mironov, Talwar, Zhang. Rényi Differential Privacy of the Sampled Gaussian Mechanism. 2019. Section 3.3. Bun,
        Steinke. Concentrated Differential Privacy: Simplifications, Extensions, and Lower Bounds. 2016. Propositions
        1.6 and 1.9. van Erven, Harremoës. Rényi Divergence and Kullback-Leibler Divergence. 2014. Theorem 13.

    Example:
        >>> round(noise_multiplier(1.0, 1e-5, 1, sample_rate=0.05, num_steps=500), 1)
        4.7
        >>> noise_multiplier(1.0, 1e-5, 10_000, sample_rate=0.05, num_steps=500) > 100_000
        True
    """
    epsilon = check_epsilon(epsilon)
    delta = check_number("delta", delta, "be in (0, 1)", lambda value: 0 < value < 1)
    group_size = check_group_size("group_size", group_size)
    sample_rate = check_number("sample_rate", sample_rate, "be in (0, 1]", lambda value: 0 < value <= 1)
    num_steps = check_count("num_steps", num_steps)
    if math.isinf(epsilon):
        return 0.0
    rho = zcdp_rho(epsilon, delta)
    plain = group_size * math.sqrt(num_steps / (2 * rho)) if rho > 0 else math.inf
    amplified = _amplified(*record_budget(epsilon, delta, group_size), sample_rate, num_steps)
    noise = plain if amplified is None else min(plain, amplified)
    if math.isinf(noise):
        raise ValueError(argument_error("epsilon", "be large enough for finite noise", epsilon))
    return noise


@functools.lru_cache(maxsize=256)  # sweeps ask for the same again and again
def _amplified(epsilon: float, delta: float, sample_rate: float, num_steps: int) -> float | None:
    """The noise by Opacus's accountant, for one row; None where it cannot reach the epsilon."""
    utils = require("opacus.accountants.utils")
    if not (_MIN_EPSILON <= epsilon <= _MAX_EPSILON and delta > 0):
        return None
    try:
        with _quiet_orders():
            multiplier = utils.get_noise_multiplier(
                target_epsilon=epsilon,
                target_delta=delta,
                sample_rate=sample_rate,
                steps=num_steps,
                epsilon_tolerance=_TOLERANCE * epsilon,
                alphas=_orders(),
            )
    except ValueError:  # "The privacy budget is too low": not even its largest order reaches it
        return None
    return float(multiplier)


def _orders() -> list[float]:
    return [*require("opacus.accountants").RDPAccountant.DEFAULT_ALPHAS, *_LARGE_ORDERS]


@contextmanager
def _quiet_orders() -> Iterator[None]:
    """Silences Opacus where the best order is its first or last: its epsilon is valid there, if not the smallest."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Optimal order is the (smallest|largest) alpha", UserWarning)
        yield


@dataclass(frozen=True)
class PrivateTraining:
    """How long a module is trained on a table, and with which guarantee: what DP-SGD's users share.

    Args:
        epsilon: of the whole training, in nats, in (0, inf]; ``inf`` for no noise.
        delta: in (0, 1).
        group_size: rows added or left out that are protected together, at least 1; ``None`` for all of them exchanged.
        num_steps: private gradient steps, at least 1.
        batch_size: expected rows of a step, at least 1; a table of fewer rows is taken whole.
        max_grad_norm: norm that an example's gradient is clipped to, from 1e-30 to 1e30.

    Example:
        >>> PrivateTraining(1.0, 1e-5, None, num_steps=10, batch_size=5, max_grad_norm=1.0).guarantee()
        GroupGuarantee(epsilon=1.0, delta=1e-05, group_size=None, replaced=True)
    """

    epsilon: float
    delta: float
    group_size: int | None
    num_steps: int
    batch_size: int
    max_grad_norm: float

    def __post_init__(self) -> None:
        """Checks the ranges."""
        size = None if self.group_size is None else check_group_size("group_size", self.group_size)
        checked = {
            "epsilon": check_epsilon(self.epsilon),
            "delta": check_number("delta", self.delta, "be in (0, 1)", lambda value: 0 < value < 1),
            "group_size": size,
            "num_steps": check_count("num_steps", self.num_steps),
            "batch_size": check_count("batch_size", self.batch_size),
            "max_grad_norm": check_scale("max_grad_norm", self.max_grad_norm),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def guarantee(self) -> GroupGuarantee:
        """Returns the guarantee of what is trained on a table."""
        return group_guarantee(self.epsilon, self.delta, self.group_size)

    def start(self, module: nn.Module, optimizer: torch.optim.Optimizer, rows: Tensor) -> PrivateSteps:
        """Returns the steps on a table, at the noise that the guarantee needs."""
        size = added_or_left_out(self.group_size, len(rows))
        sample_rate = min(1.0, self.batch_size / len(rows))
        noise = noise_multiplier(self.epsilon, self.delta, size, sample_rate, self.num_steps)
        if noise * self.max_grad_norm > _MAX_NOISE:
            raise ValueError(argument_error("epsilon", "be large enough for noise that float32 holds", self.epsilon))
        return PrivateSteps(
            module,
            optimizer,
            rows,
            noise_multiplier=noise,
            sample_rate=sample_rate,
            max_grad_norm=self.max_grad_norm,
        )


class PrivateSteps:
    r"""Steps of DP-SGD on a table: Poisson samples, gradients clipped example by example, normal noise.

    .. math::
        g = \frac{1}{r n} \Bigl( \sum_{i \in \text{sample}} g_i \min(1, C/\|g_i\|) + \sigma C\, N(0, I) \Bigr) .

    Privacy:
        A baseline to compare with, not for release: the noise comes from torch's generator, not from a cryptographic
        one, and is as exposed to the rounding of floats as any such noise. The losses are private.

    Args:
        module: what is trained; it treats every example by itself.
        optimizer: of its parameters.
        rows: the table, shape ``(n, d)``.
        noise_multiplier: :math:`\sigma`, at least 0.
        sample_rate: r, probability of a row to be in a step, in (0, 1].
        max_grad_norm: C, above 0.

    References:
        Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar, Zhang. Deep Learning with Differential Privacy. 2016.
        Algorithm 1.

    Example:
        >>> model = nn.Linear(2, 1)
        >>> sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> rows = torch.randn(100, 2)
        >>> steps = PrivateSteps(model, sgd, rows, noise_multiplier=4.0, sample_rate=0.1, max_grad_norm=1.0)
        >>> for _ in range(3):
        ...     steps.step(steps.sample(), lambda output: output.squeeze(-1).square())
        >>> 0 < steps.epsilon_spent(1e-5) < 1
        True
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        rows: Tensor,
        *,
        noise_multiplier: float,
        sample_rate: float,
        max_grad_norm: float,
    ) -> None:
        self._module, self._buffers = module, dict(module.named_buffers())
        self._weights = dict(module.named_parameters())
        self._optimizer: Any = require("opacus.optimizers").DPOptimizer(
            optimizer,
            noise_multiplier=noise_multiplier,
            max_grad_norm=max_grad_norm,
            expected_batch_size=sample_rate * len(rows),
        )
        #: Opacus's Rényi accountant, which has seen every step.
        self.accountant: Any = require("opacus.accountants").RDPAccountant()
        self._optimizer.attach_step_hook(self.accountant.get_optimizer_hook_fn(sample_rate))
        self._rows, self.sample_rate, self.noise_multiplier = rows, sample_rate, noise_multiplier

    def sample(self) -> Tensor:
        """Returns a Poisson sample: every row with the probability of the sample rate. It may be empty."""
        return self._rows[torch.rand(len(self._rows), device=self._rows.device) < self.sample_rate]

    def step(self, examples: Tensor, losses: Callable[[Tensor], Tensor]) -> None:
        """Takes one noisy step.

        Args:
            examples: shape ``(m, ...)``, the m-th computed from one row of the table and from what is public.
            losses: maps the module's output for them to their losses, shape ``(m,)``.
        """
        self._optimizer.zero_grad()
        for name, gradients in self._gradients(examples, losses).items():
            # A gradient beyond all floats counts as none: clipped, it would be NaN. Example by example, so private too.
            setattr(self._weights[name], "grad_sample", gradients.nan_to_num_(0.0, 0.0, 0.0))  # noqa: B010  # Opacus's
        self._optimizer.step()

    def _gradients(self, examples: Tensor, losses: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        """Every example's gradient, by the names of parameters."""
        weights = {name: weight.detach() for name, weight in self._weights.items()}
        if not len(examples):  # torch maps no function over nothing
            return {name: weight.new_zeros(0, *weight.shape) for name, weight in weights.items()}

        def loss(weights: dict[str, Tensor], example: Tensor) -> Tensor:
            output: Tensor = functional_call(self._module, (weights, self._buffers), (example.unsqueeze(0),))
            return losses(output).squeeze(0)

        gradients: dict[str, Tensor] = vmap(grad(loss), in_dims=(None, 0))(weights, examples)
        return gradients

    def result(self) -> nn.Module:
        """Returns a copy of the module as it is now trained: plain, frozen, in eval mode."""
        return copy.deepcopy(self._module).requires_grad_(False).eval()

    def epsilon_spent(self, delta: float) -> float:
        """Returns what Opacus's accountant says of one row after the steps taken, in nats; inf without noise."""
        delta = check_number("delta", delta, "be in (0, 1)", lambda value: 0 < value < 1)
        if self.noise_multiplier == 0:
            return math.inf
        with _quiet_orders():
            return max(float(self.accountant.get_epsilon(delta, alphas=_orders())), 0.0)
