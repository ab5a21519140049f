"""Natural parameters fitted again: never worse, never larger in sum."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pyro_mbde.density.bounds import LOG_2
from pyro_mbde.training.reweighting import reweight


def gain(c_p: Tensor, c_q: Tensor, theta: Tensor) -> float:
    return float((c_p.double() @ theta).mean() - ((c_q.double() @ theta).exp().mean()).log())


@pytest.mark.parametrize("num_rounds", [1, 3, 10])
def test_better_and_within_the_same_sum(num_rounds: int) -> None:
    for _ in range(5):
        c_p = (torch.randn(300, num_rounds) + torch.randn(num_rounds)).clamp(-LOG_2, LOG_2)
        c_q = torch.randn(300, num_rounds).clamp(-LOG_2, LOG_2)
        start = torch.rand(num_rounds, dtype=torch.float64)
        theta = reweight(c_p, c_q, start)
        assert float(theta.abs().sum()) <= float(start.sum()) * (1 + 1e-12)
        assert gain(c_p, c_q, theta) >= gain(c_p, c_q, start)
        # Attack: no point of the ball that was tried gains more.
        signs = torch.randn(2000, num_rounds, dtype=torch.float64)
        others = signs / signs.abs().sum(1, keepdim=True) * start.sum() * torch.rand(2000, 1, dtype=torch.float64)
        best = max(gain(c_p, c_q, other) for other in others)
        assert gain(c_p, c_q, theta) >= best - 1e-4


def test_a_useless_classifier_is_left_out() -> None:
    c_p, c_q = torch.tensor([[0.6, 0.0]] * 50), torch.tensor([[-0.6, 0.6], [0.6, -0.6], [-0.6, 0.6]] * 20)
    theta = reweight(c_p, c_q, torch.tensor([0.2, 0.8], dtype=torch.float64))
    assert float(theta[0]) > 0.9


def test_nothing_to_spend() -> None:
    start = torch.zeros(2, dtype=torch.float64)
    assert torch.equal(reweight(torch.ones(3, 2), torch.ones(3, 2), start), start)
