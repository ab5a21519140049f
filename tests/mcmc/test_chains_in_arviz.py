"""What ArviZ and Pyro make of chains beside their draws: log-likelihoods, predictions, priors, named dimensions."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import Any

import arviz
import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from densities import make_density
from matplotlib import pyplot
from pyro import poutine
from pyro.infer import MCMC, NUTS, Predictive

from pyro_mbde import Chains, MollifiedExpFamily, run_mcmc
from pyro_mbde.mcmc.pointwise import observations, pointwise_log_likelihood

IS_TREE = int(arviz.__version__.split(".")[0]) >= 1
ROWS = torch.tensor([[0.2, -0.4, 0.9], [1.1, 0.4, 0.3]])


class Wards:
    """Readings of two wards, of which each has a level with a density as its prior."""

    def __init__(self, prior: MollifiedExpFamily, scale: float = 0.5) -> None:
        self.prior, self.scale = prior, scale

    def __call__(self, rows: torch.Tensor | None = None) -> torch.Tensor:
        with pyro.plate("wards", 2, dim=-2):
            level = pyro.sample("level", self.prior)
            with pyro.plate("beds", 3, dim=-1):
                return pyro.sample("reading", dist.Normal(level, self.scale), obs=rows)


@pytest.fixture(scope="module")
def prior() -> MollifiedExpFamily:
    torch.manual_seed(3)
    return make_density(dist.Normal(0.0, 1.0))


@pytest.fixture(scope="module")
def wards(prior: MollifiedExpFamily) -> Wards:
    return Wards(prior)


@pytest.fixture(scope="module")
def chains(wards: Wards) -> Chains:
    return run_mcmc(wards, "lockstep_random_walk", 200, 200, 4, model_args=(ROWS,), seed=0, progress=False)


@pytest.fixture
def no_windows() -> Iterator[None]:
    """Figures of pyplot's that need no display, closed in the end."""
    backend = pyplot.get_backend()
    pyplot.switch_backend("Agg")
    yield
    pyplot.close("all")
    pyplot.switch_backend(backend)


def groups_of(data: Any) -> set[str]:
    return set(data.children) if IS_TREE else set(data.groups())


def test_draws_for_predictive(chains: Chains, wards: Wards) -> None:
    samples = chains.get_samples()
    assert samples["level"].shape == (800, 2, 1)
    assert torch.equal(samples["level"].reshape(4, 200, 2, 1), chains.draws["level"])
    assert torch.equal(chains.get_samples(group_by_chain=True)["level"], chains.draws["level"])
    for parallel, size, error in ((True, 800, 0.05), (False, 100, 0.14)):  # nearly five standard errors
        some = {name: values[:size] for name, values in samples.items()}
        predicted = Predictive(wards, some, parallel=parallel)()["reading"]
        assert predicted.shape == (size, 2, 3)
        errors = predicted - some["level"]
        assert float(errors.std()) == pytest.approx(0.5, rel=error)
    with pytest.raises(TypeError, match="group_by_chain must be True or False"):
        chains.get_samples(group_by_chain=2)


def test_log_likelihoods(chains: Chains, wards: Wards) -> None:
    data = chains.to_arviz(model=wards, model_args=(ROWS,))
    assert groups_of(data) == {"posterior", "sample_stats", "observed_data", "log_likelihood"}
    assert np.array_equal(data["observed_data"]["reading"].to_numpy(), ROWS.numpy())
    expected = dist.Normal(chains.draws["level"], 0.5).log_prob(ROWS)
    assert np.allclose(data["log_likelihood"]["reading"].to_numpy(), expected.numpy(), atol=1e-5)
    keywords = chains.to_arviz(model=wards, model_kwargs={"rows": ROWS}, log_likelihood=False)
    assert groups_of(keywords) == {"posterior", "sample_stats", "observed_data"}


def test_leave_one_out_and_comparison(chains: Chains, wards: Wards, prior: MollifiedExpFamily) -> None:
    wide = Wards(prior, 5.0)
    others = run_mcmc(wide, "lockstep_random_walk", 200, 200, 4, model_args=(ROWS,), seed=1, progress=False)
    data = {
        "narrow": chains.to_arviz(model=Wards(prior), model_args=(ROWS,), log_likelihood=True),
        "wide": others.to_arviz(model=wide, model_args=(ROWS,), log_likelihood=True),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ArviZ on six observations
        loo = arviz.loo(data["narrow"])
        comparison = arviz.compare(data)
    # the mean of the pointwise predictive densities, within what leaving one of six out may change
    log_likelihood = dist.Normal(chains.draws["level"], 0.5).log_prob(ROWS).reshape(800, 6)
    in_sample = float((log_likelihood.logsumexp(0) - math.log(800)).sum())
    elpd = float(loo.elpd if IS_TREE else loo.elpd_loo)
    assert in_sample - 5 < elpd < in_sample
    assert list(comparison.index) == ["narrow", "wide"]


@pytest.mark.skipif(IS_TREE, reason="ArviZ 1 has no from_pyro")
@pytest.mark.filterwarnings("ignore:Estimated shape parameter of Pareto")
def test_as_from_pyro(wards: Wards) -> None:
    """The same run through Pyro's MCMC and ArviZ's own converter: same groups, same numbers."""
    mcmc = MCMC(NUTS(wards), 30, 20, disable_progbar=True)
    mcmc.run(ROWS)
    same = Chains(mcmc.get_samples(group_by_chain=True), {"diverging": torch.zeros(1, 30).bool()}, (0,), 20, "nuts")
    after = Predictive(wards, mcmc.get_samples())()
    before = Predictive(wards, num_samples=30)()
    options = {"posterior_predictive": after, "prior": before, "dims": {"reading": ["ward", "bed"]}}
    expected = arviz.from_pyro(mcmc, log_likelihood=True, **options)
    found = same.to_arviz(model=wards, model_args=(ROWS,), **options)
    assert groups_of(found) == groups_of(expected)
    for group in ("posterior", "log_likelihood", "observed_data", "posterior_predictive", "prior_predictive"):
        for name, variable in expected[group].data_vars.items():
            assert found[group][name].dims == variable.dims
            assert np.allclose(found[group][name].to_numpy(), variable.to_numpy(), atol=1e-5)
    assert float(arviz.loo(found).elpd_loo) == pytest.approx(float(arviz.loo(expected).elpd_loo), abs=1e-3)


@pytest.mark.usefixtures("no_windows")
def test_predictions_and_priors(chains: Chains, wards: Wards) -> None:
    uncondition = poutine.uncondition(wards)
    prior_draws = Predictive(wards, num_samples=30, parallel=True)()
    data = chains.to_arviz(
        model=wards,
        model_args=(ROWS,),
        log_likelihood=False,
        posterior_predictive=Predictive(uncondition, chains.get_samples(), parallel=True)(ROWS),
        prior=prior_draws,
        predictions={"reading": torch.zeros(4, 200, 5)},
        constant_data={"number": np.arange(2)},
        predictions_constant_data={"number": [3]},
        dims={"number": ["ward"]},
        pred_dims={"reading": ["bed"]},
        coords={"bed": list("abcde")},
    )
    assert list(data["predictions"]["bed"].to_numpy()) == list("abcde")
    assert groups_of(data) == {
        "posterior",
        "sample_stats",
        "observed_data",
        "posterior_predictive",
        "prior",
        "prior_predictive",
        "predictions",
        "constant_data",
        "predictions_constant_data",
    }
    assert data["posterior_predictive"]["reading"].shape == (4, 200, 2, 3)
    assert data["prior"]["level"].shape == (1, 30, 2, 1)
    assert data["prior_predictive"]["reading"].shape == (1, 30, 2, 3)
    assert np.array_equal(data["prior"]["level"].to_numpy()[0], prior_draws["level"].reshape(30, 2, 1).numpy())
    assert data["predictions"]["reading"].dims == ("chain", "draw", "bed")
    assert data["constant_data"]["number"].dims == ("ward",)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if IS_TREE:
            arviz.plot_ppc_dist(data, num_samples=10)
        else:
            arviz.plot_ppc(data, num_pp_samples=10)


def test_a_plate_at_dim_minus_two(chains: Chains, wards: Wards) -> None:
    arguments = {"model": wards, "model_args": (ROWS,), "coords": {"ward": ["north", "south"]}}
    data = chains.to_arviz(dims={"level": ["ward"], "reading": ["ward", "bed"]}, **arguments)
    assert data["posterior"]["level"].dims == ("chain", "draw", "ward")
    south = data["posterior"]["level"].sel(ward="south").to_numpy()
    assert np.array_equal(south, chains.draws["level"][:, :, 1, 0].numpy())
    assert data["log_likelihood"]["reading"].dims == ("chain", "draw", "ward", "bed")
    assert data["observed_data"]["reading"].dims == ("ward", "bed")
    whole = chains.to_arviz(dims={"level": ["ward", "one"]}, **arguments)
    assert whole["posterior"]["level"].dims == ("chain", "draw", "ward", "one")
    with pytest.raises(ValueError, match="dims must name the 2 event dimensions of level, .* of size 1 may be left"):
        chains.to_arviz(dims={"level": ["a", "b", "c"]})


def test_event_dimensions_are_gone_in_log_likelihoods() -> None:
    data = torch.randn(5, 2)

    def model() -> None:
        centre = pyro.sample("centre", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("rows", 5):
            pyro.sample("row", dist.Normal(centre, 1.0).to_event(1), obs=data)

    chains = Chains({"centre": torch.randn(2, 10, 2)}, {}, (1, 2), 0, "nuts")
    named = chains.to_arviz(dims={"row": ["patient", "column"], "centre": ["column"]}, model=model)
    assert named["log_likelihood"]["row"].dims == ("chain", "draw", "patient")
    assert named["observed_data"]["row"].dims == ("patient", "column")


def test_what_is_observed() -> None:
    """Data alone: not factors, nor what is computed, nor plates; masked entries are worth nothing."""
    mask, values = torch.tensor([True, False, True]), torch.tensor([0.1, 9.0, 0.3])

    def model() -> None:
        centre = pyro.sample("centre", dist.Normal(0.0, 1.0))
        pyro.deterministic("double", 2 * centre)
        pyro.factor("penalty", -centre.square())
        with pyro.plate("rows", 3), poutine.mask(mask=mask):
            pyro.sample("row", dist.Normal(centre, 1.0), obs=values)

    assert observations(model, (), {}).keys() == {"row"}
    centres = torch.linspace(-1, 1, 7)
    scores = pointwise_log_likelihood(model, (), {}, {"centre": centres})
    expected = torch.where(mask, dist.Normal(centres[:, None], 1.0).log_prob(values), 0.0)
    assert scores.keys() == {"row"}
    assert torch.allclose(scores["row"], expected, atol=1e-6)


def test_missing_entries_of_a_density(prior: MollifiedExpFamily) -> None:
    values, mask = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([True, False, True])

    def model() -> None:
        with pyro.plate("rows", 3):
            pyro.sample("x", prior, obs=values, obs_mask=mask)

    chains = run_mcmc(model, "nuts", 10, 10, 2, seed=0, progress=False, num_workers=1)
    data = chains.to_arviz(model=model)
    log_likelihood = data["log_likelihood"]["x_observed"].to_numpy()
    assert np.allclose(log_likelihood[0, 0], torch.where(mask, prior.log_prob(values), 0.0).numpy(), atol=1e-5)


def test_a_model_that_branches_on_values() -> None:
    """One draw after the other gives what all at once would."""

    def model() -> None:
        centre = pyro.sample("centre", dist.Normal(0.0, 1.0))
        scale = 2.0 if centre > 0 else 0.5
        pyro.sample("row", dist.Normal(centre, scale), obs=torch.tensor(0.7))

    centres = torch.linspace(-1, 1, 8)
    scores = pointwise_log_likelihood(model, (), {}, {"centre": centres})["row"]
    expected = dist.Normal(centres, torch.where(centres > 0, 2.0, 0.5)).log_prob(torch.tensor(0.7))
    assert torch.allclose(scores, expected)


def test_the_callers_generator_is_left_alone(chains: Chains, wards: Wards) -> None:
    before = torch.get_rng_state()
    chains.to_arviz(model=wards, model_args=(ROWS,))
    assert torch.equal(before, torch.get_rng_state())


def test_what_cannot_be_converted(chains: Chains) -> None:
    def mixture() -> None:
        share = pyro.sample("share", dist.Beta(1.0, 1.0))
        kind = pyro.sample("kind", dist.Bernoulli(share))
        pyro.sample("row", dist.Normal(kind, 1.0), obs=torch.tensor(0.3))

    of_mixture = Chains({"share": torch.rand(2, 10)}, {}, (1, 2), 0, "nuts")
    with pytest.raises(ValueError, match="have no latent sites except those of the chains, got model='kind'"):
        of_mixture.to_arviz(model=mixture)
    assert "log_likelihood" not in groups_of(of_mixture.to_arviz(model=mixture, log_likelihood=False))
    with pytest.raises(ValueError, match="model must be given for log-likelihoods, .*Pass model, model_args"):
        chains.to_arviz(log_likelihood=True)
    with pytest.raises(TypeError, match="prior must be a dict of tensors, as Predictive returns"):
        chains.to_arviz(prior=torch.zeros(3))
    with pytest.raises(ValueError, match=r"posterior_predictive\['y'\] must have 800 draws, as the chains have"):
        chains.to_arviz(posterior_predictive={"y": torch.zeros(7, 3)})
    with pytest.raises(ValueError, match="pred_dims must name sites among"):
        chains.to_arviz(predictions={"y": torch.zeros(800)}, pred_dims={"z": ["a"]})
    with pytest.raises(ValueError, match="coords must hold 3 labels for bed"):
        named = {"coords": {"bed": ["a", "b"]}, "pred_dims": {"y": ["bed"]}}
        chains.to_arviz(predictions={"y": torch.zeros(800, 3)}, **named)


def test_predictions_of_rows_of_several_columns() -> None:
    """As ``docs/chains.md`` writes it: without ``parallel``, which counts a row's columns as plates."""
    torch.manual_seed(5)
    rows = make_density(dist.Normal(torch.zeros(2), torch.ones(2)).to_event(1))
    times = torch.tensor([0.0, 1.0, 2.0])

    def lines(readings: torch.Tensor | None = None) -> torch.Tensor:
        with pyro.plate("patients", 4, dim=-1):
            row = pyro.sample("row", rows)
            with pyro.plate("visits", 3, dim=-2):
                mean = row[..., 0] + row[..., 1] * times[:, None]
                return pyro.sample("reading", dist.Normal(mean, 0.5), obs=readings)

    readings = torch.zeros(3, 4)
    starts = {"row": 0.1 * torch.randn(2, 4, 2)}
    chains = run_mcmc(
        lines, "lockstep_random_walk", 20, 20, 2, model_args=(readings,), seed=0, progress=False, initial_values=starts
    )
    predicted = Predictive(poutine.uncondition(lines), chains.get_samples())(readings)
    assert predicted["reading"].shape == (40, 3, 4)
    data = chains.to_arviz(model=lines, model_args=(readings,), posterior_predictive=predicted)
    assert data["log_likelihood"]["reading"].shape == (2, 20, 3, 4)
    assert data["posterior_predictive"]["reading"].shape == (2, 20, 3, 4)
