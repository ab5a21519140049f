"""The examples' functions at small sizes: chains agree with quadrature."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pyro.distributions as dist
import pytest
import torch
from click.testing import CliRunner
from densities import make_density

from pyro_mbde import MollifiedExpFamily, run_mcmc
from pyro_mbde.sampling.posterior import posterior_guarantee

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture
def example(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """An example as a module."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield importlib.import_module(request.param)
    sys.modules.pop(request.param)


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


@pytest.mark.slow
@pytest.mark.parametrize("example", ["new_clinic"], indirect=True)
def test_new_clinic(example: ModuleType, generator: torch.Generator) -> None:
    cohort, people = example.load_scores(generator)
    assert len(cohort) > 2 * len(people) > 5000
    assert 0 <= float(cohort.min()) <= float(cohort.max()) <= example.TOP
    clinic = example.simulate_clinic(people, 3, generator)
    q = make_density(dist.Uniform(0.0, example.TOP), link="tanh")
    log_prior = q.log_prob(example.SCORES).double()
    posterior = example.quadrature(log_prior, clinic.readings)
    step = float(example.BIASES[1] - example.BIASES[0])
    assert float(posterior.bias_density.sum()) * step == pytest.approx(1)
    options = {"full_mass": True, "target_accept_prob": 0.7}
    chains = run_mcmc(
        example.model,
        "nuts",
        150,
        80,
        2,
        seed=1,
        progress=False,
        model_args=(q, clinic.readings),
        kernel_options=options,
        num_workers=1,
    )
    table = example.check_chains(chains, posterior)
    assert len(table) == 4
    assert float(table["ESS"].min()) > 50
    assert float(table["off by (MCSEs)"].abs().max()) < 4.5

    log_priors = {"public base": torch.zeros_like(example.SCORES), "private prior q": log_prior}
    log_priors["bare table"] = example.table_log_density(cohort)
    errors = example.average_errors(log_priors, people, 3, 20, generator)
    assert errors.loc["bare table", "error of a score"] < errors.loc["public base", "error of a score"]
    posteriors = {name: example.quadrature(prior, clinic.readings) for name, prior in log_priors.items()}
    figure = example.draw_picture(cohort, log_priors, clinic, posteriors, chains)
    assert len(figure.axes) == 3


@pytest.mark.parametrize("example", ["new_clinic"], indirect=True)
def test_quadrature_of_a_conjugate_clinic(example: ModuleType) -> None:
    """With a normal prior of scores, bias and scores are jointly normal: means by solving a linear system."""
    readings = torch.tensor([28.0, 35.0], dtype=torch.float64)
    posterior = example.quadrature(dist.Normal(30.0, 4.0).log_prob(example.SCORES), readings)
    covariance = 16 * torch.eye(2).double() + example.BIAS_SCALE**2 + example.READING_SCALE**2 * torch.eye(2).double()
    weights = torch.linalg.solve(covariance, readings - 30)
    bias_variance = example.BIAS_SCALE**2 * (1 - example.BIAS_SCALE**2 * torch.linalg.inv(covariance).sum())
    assert posterior.bias_mean == pytest.approx(float(example.BIAS_SCALE**2 * weights.sum()), abs=2e-3)
    assert posterior.bias_deviation == pytest.approx(float(bias_variance.sqrt()), abs=2e-3)
    assert torch.allclose(posterior.score_means, 30 + 16 * weights, atol=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("example", ["contaminated_survey"], indirect=True)
def test_contaminated_survey(example: ModuleType, generator: torch.Generator) -> None:
    table, people = example.load_rows(generator)
    assert len(table) > 2 * len(people) > 5000
    misread = example.misread_density()
    assert bool(misread.support.check(table).all())
    survey = example.simulate_survey(people, generator)
    q = make_density(dist.Normal(example.BASE_MEAN, example.BASE_SCALE).to_event(1))
    log_odds = (misread.log_prob(survey.rows) - q.log_prob(survey.rows)).double()
    posterior = example.quadrature(log_odds)
    assert float(posterior.density.mean()) == pytest.approx(1)
    chains = run_mcmc(
        example.model, "nuts", 120, 60, 2, seed=1, progress=False, model_args=(q, survey.rows), num_workers=1
    )
    table = example.check_chains(chains, posterior, log_odds)
    assert float(table["off by (MCSEs)"].abs().max()) < 4.5
    posteriors = {"public base": posterior, "private density q": posterior}
    figure = example.draw_picture(survey, q, posteriors, chains)
    assert len(figure.axes) == 4


@pytest.mark.parametrize("example", ["contaminated_survey"], indirect=True)
def test_quadrature_of_a_survey_without_information(example: ModuleType) -> None:
    """Without information the posterior is the prior; with certain rows it is conjugate."""
    prior = example.quadrature(torch.zeros(5, dtype=torch.float64))
    assert prior.mean == pytest.approx(1 / 4, abs=1e-4)
    certain = example.quadrature(torch.tensor([200.0] * 2 + [-200.0] * 8, dtype=torch.float64))
    assert certain.mean == pytest.approx(3 / 14, abs=1e-4)  # Beta(1 + 2, 3 + 8)
    assert torch.allclose(certain.row_probs, torch.tensor([1.0] * 2 + [0.0] * 8).double())


@pytest.mark.slow
@pytest.mark.parametrize("example", ["new_clinic", "contaminated_survey"], indirect=True)
def test_main(example: ModuleType, tmp_path: Path) -> None:
    arguments = ["--output", str(tmp_path), "--num-samples", "100"]
    if example.__name__ == "new_clinic":
        arguments += ["--num-clinics", "5"]
    result = CliRunner().invoke(example.main, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    assert "not for release" in result.output
    assert (tmp_path / f"{example.__name__}.png").stat().st_size > 10_000


@pytest.mark.slow
def test_the_page_on_models_runs() -> None:
    page = (EXAMPLES.parent / "docs" / "models.md").read_text()
    blocks = [part.split("```")[0] for part in page.split("```python\n")[1:]]
    assert len(blocks) >= 8
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)
    q, posterior = names["q"], names["posterior"]
    assert isinstance(q, MollifiedExpFamily)
    assert isinstance(posterior, MollifiedExpFamily)
    assert posterior.guarantee == posterior_guarantee(q)
