"""What holds of every baseline: arguments, shapes, densities that integrate to 1, seeds, guarantees."""

from __future__ import annotations

import inspect
import math
import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyro.distributions as dist
import pytest
import torch
from densities import normal
from torch import Tensor

from pyro_mbde import WeakLearner
from pyro_mbde.density.base import prepare_base
from pyro_mbde.experiments.baselines.bernstein import BernsteinKDE
from pyro_mbde.experiments.baselines.common import FittedDensity, check_scale, check_sizes, continuous_base
from pyro_mbde.experiments.baselines.dpgan import DPGAN
from pyro_mbde.experiments.baselines.flow import DPFlow
from pyro_mbde.experiments.baselines.histogram import LinearMixture, MinimaxSampler
from pyro_mbde.experiments.baselines.kde import KDE
from pyro_mbde.experiments.baselines.mst import MST
from pyro_mbde.experiments.baselines.unbounded import UnboundedMBDE
from pyro_mbde.metrics import quadrature_grid
from pyro_mbde.privacy.group import GroupGuarantee
from pyro_mbde.privacy.guarantee import Guarantee

pytest.importorskip("opacus")
pytest.importorskip("mbi")

BOX = (-8.0, 8.0)
LEARNER = WeakLearner(hidden_sizes=(25, 25), activation="tanh", num_frequencies=0, num_steps=5, batch_size=64)


class Baseline(NamedTuple):
    """A trainer with settings that take no time, and what is shown of it."""

    make: Callable[..., Any]
    settings: dict[str, Any]
    bar: str | None
    trainer_repr: str
    density_repr: str
    bad: list[tuple[str, Any, type[Exception]]]  # arguments that it alone has


BASELINES = {
    "bernstein": Baseline(
        BernsteinKDE,
        {"epsilon": 1.0, "lattice_size": 12},
        None,
        "BernsteinKDE(epsilon=1, group_size=1, bandwidth=0.05, lattice_size=12, iterations=1)",
        "BernsteinDensity(epsilon=1, lattice_size=12, event_shape=())",
        [
            *(("bandwidth", value, ValueError) for value in (0.0, math.inf, math.nan, 1e-200, 1e300)),
            ("lattice_size", 0, ValueError),
            ("lattice_size", 10**6, ValueError),
            ("iterations", 0, ValueError),
            ("iterations", 31, ValueError),
        ],
    ),
    "bernstein-paper": Baseline(
        BernsteinKDE.paper,
        {"epsilon": 1.0, "lattice_size": 12},
        "BernsteinKDE",
        "BernsteinKDE.paper(not private, epsilon=1, group_size=1, bandwidth=None, lattice_size=12, iterations=1)",
        "BernsteinDensity(not private, lattice_size=12, event_shape=())",
        [("lattice_size", 0, ValueError), ("iterations", 31, ValueError)],
    ),
    "mst": Baseline(
        MST,
        {"epsilon": 1.0, "num_bins": 4},
        "MST: ",
        "MST(epsilon=1, delta=1e-05, group_size=1, num_bins=4, uniform_share=0.01)",
        "MSTDensity(epsilon=1, num_bins=4, edges=(), event_shape=())",
        [("num_bins", 0, ValueError), ("uniform_share", 1.0, ValueError)],
    ),
    "dpgan": Baseline(
        DPGAN,
        {"epsilon": 1.0, "delta": 1e-5, "num_steps": 8, "batch_size": 20, "num_density_draws": 200},
        "private GAN",
        "DPGAN(PrivateTraining(epsilon=1.0, delta=1e-05, group_size=1, num_steps=8, batch_size=20, max_grad_norm=1.0))",
        "GeneratorDensity(epsilon=1, event_shape=())",
        [
            ("num_steps", 0, ValueError),
            ("batch_size", 2.5, TypeError),
            ("critic_steps", 0, ValueError),
            ("latent_dim", 0, ValueError),
            ("critic_sizes", (), ValueError),
            ("generator_sizes", "64", TypeError),
            ("critic_learning_rate", 0.0, ValueError),
            ("critic_learning_rate", 1e300, ValueError),
            ("generator_learning_rate", math.nan, ValueError),
            ("clip", 0.0, ValueError),
            ("clip", 1e300, ValueError),
            ("max_grad_norm", 1e-300, ValueError),
            ("max_grad_norm", math.inf, ValueError),
            ("num_density_draws", 1, ValueError),
        ],
    ),
    "flow": Baseline(
        DPFlow,
        {"epsilon": 1.0, "num_steps": 8, "batch_size": 20},
        "private flow",
        "DPFlow(num_layers=2, hidden_sizes=(16, 16), PrivateTraining(epsilon=1.0, delta=1e-05, group_size=1, "
        "num_steps=8, batch_size=20, max_grad_norm=20.0))",
        "FlowDensity(epsilon=1, event_shape=())",
        [
            ("num_layers", 0, ValueError),
            ("hidden_sizes", (), ValueError),
            ("hidden_sizes", 16, TypeError),
            ("num_steps", 1.5, TypeError),
            ("batch_size", 0, ValueError),
            ("learning_rate", math.inf, ValueError),
            ("max_grad_norm", 0.0, ValueError),
        ],
    ),
    "minimax": Baseline(
        MinimaxSampler,
        {"epsilon": 5.0, "num_bins": 20},
        None,
        "MinimaxSampler(epsilon=5, filled_share=None, num_bins=20)",
        "HistogramDensity(epsilon=5, num_bins=20, event_shape=())",
        [
            ("num_bins", 1, ValueError),
            *(("filled_share", value, ValueError) for value in (0.0, 1.0, math.nan)),
            ("low", torch.zeros(3), ValueError),
        ],
    ),
    "mixture": Baseline(
        LinearMixture,
        {"epsilon": 1.0, "num_bins": 4},
        None,
        "LinearMixture(epsilon=1, largest_ratio=None, num_bins=4)",
        "HistogramDensity(epsilon=1, num_bins=4, event_shape=())",
        [
            ("num_bins", 1, ValueError),
            *(("largest_ratio", value, ValueError) for value in (1.0, math.inf, math.nan)),
            ("low", torch.zeros(3), ValueError),
        ],
    ),
    "kde": Baseline(
        KDE,
        {},
        None,
        "KDE(not private, bandwidth='scott')",
        "KDEDensity(not private, event_shape=())",
        [
            *(
                ("bandwidth", value, ValueError)
                for value in (0.0, -1.0, math.inf, math.nan, 1e-200, 9e-9, 1.1e8, 1e300)
            ),
            ("bandwidth", "sheather", ValueError),
            ("bandwidth", None, TypeError),
        ],
    ),
    "unbounded": Baseline(
        UnboundedMBDE,
        {"epsilon": 1.0, "num_rounds": 2, "box": BOX, "weak_learner": LEARNER, "num_samples": 500},
        "UnboundedMBDE",
        f"UnboundedMBDE(not private, epsilon=1, num_rounds=2, box=(-8.0, 8.0), {LEARNER})",
        "UnboundedDensity(not private, rounds=2, event_shape=())",
        [
            ("base", normal(3), ValueError),
            ("epsilon", math.inf, ValueError),
            ("num_rounds", 0, ValueError),
            ("box", (1.0, 1.0), ValueError),
            ("box", (0.0, math.inf), ValueError),
            ("box", 3.0, TypeError),
            ("box", None, TypeError),
            ("weak_learner", "paper", TypeError),
        ],
    ),
}
#: Whose fits need no randomness; and whose guarantee is of one draw, for any tables.
WITHOUT_NOISE, ONE_DRAW = ("kde", "minimax", "mixture"), ("minimax", "mixture")
#: Of every baseline that has an argument of the name.
BAD: list[tuple[str, Any, type[Exception]]] = [
    ("base", dist.Poisson(3.0), ValueError),
    ("base", "normal", TypeError),
    ("low", "0", TypeError),
    ("low", 9.0, ValueError),
    ("low", -math.inf, ValueError),
    ("low", torch.zeros(2, 2), ValueError),
    ("high", torch.ones(3), ValueError),
    ("epsilon", 0.0, ValueError),
    ("epsilon", -1.0, ValueError),
    ("epsilon", "1", TypeError),
    ("delta", 0.0, ValueError),
    ("delta", 1.0, ValueError),
    ("delta", None, TypeError),
    ("group_size", 0, ValueError),
    ("group_size", 1.5, TypeError),
    ("group_size", 2**53 + 1, ValueError),
    ("num_samples", 1, ValueError),
    ("seed", -1, ValueError),
    ("seed", 0.5, TypeError),
    ("progress", 1, TypeError),
    ("progress", None, TypeError),
]
ARGUMENTS = [
    (name, *bad)
    for name, baseline in BASELINES.items()
    for bad in BAD + baseline.bad
    if bad[0] in inspect.signature(baseline.make).parameters
]


def has(name: str, argument: str) -> bool:
    return argument in inspect.signature(BASELINES[name].make).parameters


def trainer(name: str, num_dims: int = 0, dtype: torch.dtype = torch.float32, **options: Any) -> Any:
    """A trainer for rows of shape ``(num_dims,)``, or of numbers for no dimensions."""
    shape = (num_dims,) if num_dims else ()
    if has(name, "low"):
        place: dict[str, Any] = {
            end: torch.full(shape, edge, dtype=dtype) for end, edge in zip(("low", "high"), BOX, strict=True)
        }
    else:
        base: Any = dist.Normal(torch.zeros(shape, dtype=dtype), torch.ones(shape, dtype=dtype))
        place = {"base": base.to_event(1) if num_dims else base}
    return BASELINES[name].make(**{**place, **BASELINES[name].settings, "seed": 0, "progress": False, **options})


def rows_of(num_dims: int = 0, num_rows: int = 120) -> Tensor:
    return 0.7 * torch.randn(num_rows, *([num_dims] if num_dims else [])) + 1


EACH = pytest.mark.parametrize("name", BASELINES)


@EACH
def test_one_surface(name: str) -> None:
    parameters = inspect.signature(BASELINES[name].make).parameters
    assert list(parameters)[0] == ("low" if "low" in parameters else "base")
    assert list(parameters)[-2:] == ["seed", "progress"]
    assert (parameters["seed"].default, parameters["progress"].default) == (None, True)
    assert parameters["progress"].kind is inspect.Parameter.KEYWORD_ONLY


@pytest.mark.parametrize(("name", "argument", "value", "error"), ARGUMENTS)
def test_arguments_are_checked(name: str, argument: str, value: object, error: type[Exception]) -> None:
    changes = {argument: value} | ({"low": torch.zeros(2)} if argument == "high" else {})
    checked = f"({argument}|high)" if argument == "low" else argument
    with pytest.raises(error, match=f"{checked} must"):
        trainer(name, **changes)


@EACH
@pytest.mark.parametrize("flag", [np.bool_(False), False])
def test_progress_is_a_flag(name: str, flag: object) -> None:
    assert trainer(name, progress=flag).progress is False


@EACH
@pytest.mark.parametrize("num_dims", [0, 2])
def test_densities(name: str, num_dims: int) -> None:
    """Shapes, dtypes, the support, and a density that integrates to 1, of a float64 table."""
    density = trainer(name, num_dims, torch.float64).fit(rows_of(num_dims))
    assert isinstance(density, FittedDensity)
    event = (num_dims,) if num_dims else ()
    assert (density.batch_shape, density.event_shape, density.dtype) == ((), event, torch.float64)
    for shape in ((), (3, 4), (0,)):
        draws = density.sample(shape)
        assert (draws.shape, draws.dtype) == ((*shape, *event), torch.float64)
        log_prob = density.log_prob(draws.float())
        assert (log_prob.shape, log_prob.dtype) == (shape, torch.float64)
        assert torch.isfinite(log_prob).all()
    draws = density.sample((50,))
    assert density.support.check(draws).all()
    assert density.expand([6]).sample().shape == (6, *event)
    for value in (math.nan, math.inf):
        assert density.log_prob(torch.full(event, value)) == -math.inf
    with pytest.raises(TypeError, match="value must be a tensor"):
        density.log_prob(0.5)
    if event:
        with pytest.raises(ValueError, match="value must have shape"):
            density.log_prob(torch.rand(3))
    reach = 8.0 if has(name, "low") else max(8.0, 1.2 * float(draws.abs().max()))
    points, volume = quadrature_grid((-reach, reach), density.event_shape, points_per_dim=240 if event else None)
    assert float(density.log_prob(points).exp().sum() * volume) == pytest.approx(1, abs=0.01)


@EACH
def test_gradients_are_finite(name: str) -> None:
    density = trainer(name, 2).fit(rows_of(2))
    value = torch.full((2,), 0.4, requires_grad=True)
    if name.startswith("bernstein"):
        assert not density.log_prob(value).requires_grad
    else:
        density.log_prob(value).backward()
        assert torch.isfinite(value.grad).all()


@EACH
def test_seeds(name: str) -> None:
    rows, points = rows_of(), torch.linspace(-1, 3, 50)
    data = dist.Normal(1.0, 0.7) if name in WITHOUT_NOISE else rows
    state = torch.get_rng_state()
    with torch.no_grad():
        first, again, other = (trainer(name, seed=seed).fit(data) for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), state)
    values = first.log_prob(points)
    assert torch.equal(values, again.log_prob(points))
    assert not torch.equal(values, other.log_prob(points))
    unseeded = []
    for _ in range(2):
        torch.manual_seed(5)
        unseeded.append(trainer(name, seed=None).fit(data).log_prob(points))
    assert torch.equal(*unseeded)
    assert not torch.equal(unseeded[0], trainer(name, seed=None).fit(data).log_prob(points))
    torch.manual_seed(4)
    draws = first.sample((5,))
    torch.manual_seed(4)
    assert torch.equal(draws, pickle.loads(pickle.dumps(first)).sample((5,)))


@pytest.mark.parametrize(
    ("name", "group_size"),
    [(name, size) for name in BASELINES for size in ((1, 7, None) if has(name, "group_size") else (None,))],
)
def test_guarantees(name: str, group_size: int | None) -> None:
    rows = rows_of()
    if name in ONE_DRAW:
        guarantee = trainer(name, epsilon=0.5).fit(rows).guarantee
        assert (type(guarantee), guarantee.epsilon, guarantee.delta) == (Guarantee, 0.5, 0.0)
        return
    if not has(name, "group_size") or name == "bernstein-paper":
        density = trainer(name).fit(rows)
        assert density.guarantee.epsilon == math.inf
    else:
        density = trainer(name, epsilon=0.5, group_size=group_size).fit(rows)
        delta = 1e-5 if has(name, "delta") else 0.0
        replaced = group_size is None or name == "bernstein"
        assert density.guarantee == GroupGuarantee(0.5, delta, group_size, replaced=replaced)
    with pytest.raises(ValueError, match="not a density fitted to a table"):
        prepare_base(density)


@EACH
def test_no_noise_is_not_private(name: str) -> None:
    options = {"epsilon": math.inf} if has(name, "group_size") or name in ONE_DRAW else {}
    density = trainer(name, **options).fit(rows_of())
    assert density.guarantee.epsilon == math.inf
    assert "not private" in repr(density)


@EACH
def test_data(name: str) -> None:
    fitted = trainer(name, 2)
    assert fitted.fit(pd.DataFrame(rows_of(2).numpy())).event_shape == (2,)
    assert trainer(name, 2).fit(normal(2)).event_shape == (2,)
    for data in (torch.randn(1, 2), torch.randn(0, 2), torch.randn(5, 3), np.zeros(3)):
        with pytest.raises(ValueError, match="data must"):
            fitted.fit(data)
    with pytest.raises(TypeError, match="data must"):
        fitted.fit(["a"])


@EACH
def test_shown(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    baseline = BASELINES[name]
    assert repr(trainer(name)) == baseline.trainer_repr
    assert repr(trainer(name).fit(rows_of())) == baseline.density_repr
    assert capfd.readouterr() == ("", "")
    trainer(name, progress=True).fit(rows_of())
    assert (baseline.bar or "") in capfd.readouterr().err


def test_bases_are_continuous() -> None:
    assert continuous_base(normal(2)).event_shape == (2,)
    with pytest.raises(ValueError, match="base must be continuous"):
        continuous_base(dist.Poisson(2.0))
    with pytest.raises(TypeError, match="base must be a Pyro or torch distribution"):
        continuous_base("normal")


def test_scales_and_sizes() -> None:
    assert (check_scale("rate", np.float32(0.5)), check_sizes("sizes", [np.int64(3), 4])) == (0.5, (3, 4))
    for rate in (0.0, -1.0, 1e-31, 1e31, math.inf, math.nan):
        with pytest.raises(ValueError, match="rate must be from 1e-30 to 1e30"):
            check_scale("rate", rate)
    for sizes, error in (((), ValueError), ((0,), ValueError), ("64", TypeError), (3, TypeError), ((2.5,), TypeError)):
        with pytest.raises(error, match="sizes must"):
            check_sizes("sizes", sizes)
