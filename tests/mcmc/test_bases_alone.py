"""Log-densities within bases_alone are those of the bases; outside it nothing has changed."""

from __future__ import annotations

import threading

import pytest
import torch
from densities import BASES, make_density, normal
from invariance import Steep
from torch import Tensor

from pyro_mbde import MollifiedExpFamily
from pyro_mbde.density.tilted import bases_alone


class Counted(Steep):
    """Counts its calls, and how many of them were recorded for gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = [0, 0]

    def forward(self, features: Tensor) -> Tensor:
        self.calls[0] += 1
        self.calls[1] += features.requires_grad
        return super().forward(features)


def counted_density() -> tuple[MollifiedExpFamily, list[int]]:
    q = MollifiedExpFamily(normal(2), Counted(), torch.tensor([2.0]), 0.0)
    calls: list[int] = q.statistics.calls  # type: ignore[assignment]  # of the copy in the density
    calls[:] = 0, 0
    return q, calls


@pytest.mark.parametrize("name", sorted(BASES))
def test_log_densities_are_the_bases_within_the_block_alone(name: str) -> None:
    q = make_density(BASES[name]())
    value = q.sample((5,))
    before, base = q.log_prob(value), q.base.log_prob(value)
    with bases_alone() as densities:
        assert torch.allclose(q.log_prob(value), base.to(q.dtype))
        with bases_alone():
            assert torch.allclose(q.log_prob(value), base.to(q.dtype))
        assert torch.allclose(q.log_prob(value), base.to(q.dtype))
        assert torch.equal(q.tilt(value), q.tilt(value))  # what is asked by name is not left out
    assert densities == {id(q)}
    assert torch.equal(q.log_prob(value), before)


def test_an_error_ends_the_block() -> None:
    q = make_density(normal(2))
    value = q.sample((3,))
    before = q.log_prob(value)
    with pytest.raises(KeyboardInterrupt), bases_alone():
        raise KeyboardInterrupt
    assert torch.equal(q.log_prob(value), before)
    with pytest.raises(ValueError, match="nan"), bases_alone(), bases_alone():
        raise ValueError("nan")
    assert torch.equal(q.log_prob(value), before)


def test_other_threads_keep_the_tilt() -> None:
    q = make_density(normal(2))
    value = q.sample((3,))
    before, seen = q.log_prob(value), []
    inside, done = threading.Event(), threading.Event()

    def other() -> None:
        inside.wait(10)
        seen.append(q.log_prob(value))
        done.set()

    thread = threading.Thread(target=other)
    thread.start()
    with bases_alone():
        inside.set()
        assert done.wait(10)
        assert not torch.equal(q.log_prob(value), before)
    thread.join()
    assert torch.equal(seen[0], before)


def test_no_network_is_evaluated_within_the_block() -> None:
    q, calls = counted_density()
    with bases_alone():
        q.log_prob(torch.zeros(4, 2))
        q.expand([4]).mask(torch.ones(4, dtype=torch.bool)).log_prob(torch.zeros(4, 2))
    assert calls == [0, 0]
    q.with_smooth_gradient().log_prob(torch.zeros(4, 2, requires_grad=True)).sum().backward()
    assert calls == [1, 0]  # evaluated, but not differentiated
