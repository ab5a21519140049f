"""The best natural parameters for given classifiers."""

from __future__ import annotations

import math

import torch
from torch import Tensor

#: Steps of L-BFGS; more than the handful of parameters needs.
_MAX_STEPS = 100


def reweight(c_p: Tensor, c_q: Tensor, natural_params: Tensor) -> Tensor:
    r"""Returns the natural parameters that fit best, with the same sum of absolute values at most.

    .. math::
        \max_\theta \; E_P[\langle \theta, c \rangle] - \log E_{Q_0} e^{\langle \theta, c \rangle}
        \quad \text{subject to} \quad \sum_t |\theta_t| \le S,

    the gain on the base, a concave problem: maximum likelihood of an exponential family. The ball is written as the
    mixtures of its corners and its centre, :math:`\theta = S \sum_t (w_t^+ - w_t^-) e_t` with w a point of the simplex,
    which softmax maps to all of space; L-BFGS climbs there from the parameters given, and what it finds is taken if it
    is better.

    Privacy:
        The result depends on the table: it is as sensitive as a weight. Only the sum S is public, so the tilt must be
        held by bounds that follow from it.

    Args:
        c_p: statistics at rows of the table, shape ``(n, T)``.
        c_q: statistics at draws of the base Q0, shape ``(m, T)``.
        natural_params: theta to start from, shape ``(T,)``, float64.

    Returns:
        theta, shape ``(T,)``, float64.

    References:
        Husain, Cranko, Nock. Integral Privacy for Sampling from Mollifier Densities. 2018. Theorem 4 (the
        guarantee depends only on the sum of theta).

    Example:
        >>> c_p, c_q = torch.tensor([[0.5, 0.0]] * 4), torch.tensor([[-0.5, 0.1], [0.5, -0.1]])
        >>> reweight(c_p, c_q, torch.tensor([0.5, 0.5], dtype=torch.float64)).round(decimals=2)
        tensor([1., 0.], dtype=torch.float64)
    """
    mean_p, c_q = c_p.double().mean(0), c_q.double()
    total = float(natural_params.abs().sum())
    if total == 0:
        return natural_params

    def gain(theta: Tensor) -> Tensor:
        return theta @ mean_p - torch.logsumexp(c_q @ theta, 0) + math.log(len(c_q))

    def to_theta(logits: Tensor) -> Tensor:
        weights = torch.softmax(logits, 0)
        num_rounds = len(natural_params)
        return total * (weights[:num_rounds] - weights[num_rounds : 2 * num_rounds])

    shares = (
        torch.cat([natural_params.clamp(min=0), (-natural_params).clamp(min=0), natural_params.new_zeros(1)]) / total
    )
    # A little of every corner: softmax never reaches one that starts at 0.
    logits = (0.9 * shares + 0.1 / len(shares)).log().requires_grad_()
    optimizer = torch.optim.LBFGS([logits], max_iter=_MAX_STEPS, line_search_fn="strong_wolfe", tolerance_grad=1e-9)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = -gain(to_theta(logits))
        torch.autograd.backward(loss)
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]  # torch leaves it unannotated
    found = to_theta(logits.detach())
    return found if bool(gain(found) > gain(natural_params)) else natural_params
