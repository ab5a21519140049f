"""What all baselines have in common: the arguments of their trainers, and of the densities that they fit."""

from __future__ import annotations

import inspect
import math

import numpy as np
import pyro.distributions as dist
import pytest
from densities import normal

from pyro_mbde.experiments.baselines.bernstein import BernsteinKDE
from pyro_mbde.experiments.baselines.common import check_scale, check_sizes, continuous_base
from pyro_mbde.experiments.baselines.dpgan import DPGAN
from pyro_mbde.experiments.baselines.flow import DPFlow
from pyro_mbde.experiments.baselines.kde import KDE
from pyro_mbde.experiments.baselines.mst import MST
from pyro_mbde.experiments.baselines.unbounded import UnboundedMBDE

TRAINERS = (BernsteinKDE, BernsteinKDE.paper, DPGAN, DPFlow, KDE, MST, UnboundedMBDE)


@pytest.mark.parametrize("trainer", TRAINERS, ids=lambda trainer: trainer.__qualname__)
def test_one_surface(trainer: object) -> None:
    parameters = inspect.signature(trainer).parameters
    assert list(parameters)[0] == ("low" if "low" in parameters else "base")
    assert list(parameters)[-2:] == ["seed", "progress"]
    assert (parameters["seed"].default, parameters["progress"].default) == (None, True)
    assert parameters["progress"].kind is inspect.Parameter.KEYWORD_ONLY


@pytest.mark.parametrize("flag", [np.bool_(False), False])
def test_progress_is_a_flag(flag: object) -> None:
    assert KDE(normal(1), progress=flag).progress is False
    with pytest.raises(TypeError, match="progress must be True or False"):
        KDE(normal(1), progress=0)


@pytest.mark.parametrize("trainer", [DPGAN, DPFlow, KDE, UnboundedMBDE])
def test_bases_are_continuous(trainer: type) -> None:
    options = {KDE: {}, UnboundedMBDE: {"epsilon": 1.0, "box": (-9.0, 9.0)}}.get(trainer, {"epsilon": 1.0})
    with pytest.raises(ValueError, match="base must be continuous"):
        trainer(dist.Poisson(2.0), **options)
    with pytest.raises(TypeError, match="base must be a Pyro or torch distribution"):
        trainer("normal", **options)
    assert continuous_base(normal(2)).event_shape == (2,)


def test_scales_and_sizes() -> None:
    assert (check_scale("rate", np.float32(0.5)), check_sizes("sizes", [np.int64(3), 4])) == (0.5, (3, 4))
    for rate in (0.0, -1.0, 1e-31, 1e31, math.inf, math.nan):
        with pytest.raises(ValueError, match="rate must be from 1e-30 to 1e30"):
            check_scale("rate", rate)
    for sizes, error in (((), ValueError), ((0,), ValueError), ("64", TypeError), (3, TypeError), ((2.5,), TypeError)):
        with pytest.raises(error, match="sizes must"):
            check_sizes("sizes", sizes)
