"""Every example runs at small sizes and says what is true; its models' chains agree with quadrature."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pandas as pd
import pyro.distributions as dist
import pytest
import torch
from click.testing import CliRunner
from densities import make_density, scale_calibration
from quadratures import ClinicQuadrature, errors_off, row_probs, survey_posterior

from pyro_mbde import DensityRatio, Ledger, MollifiedExpFamily, run_mcmc
from pyro_mbde.sampling.posterior import posterior_guarantee

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py"))
#: The others take five to thirty seconds of CPU even in small: a batch's certificate, or a comparison with exact draws.
QUICK = {"likelihood", "prior"}
#: What an example writes where that is not ``<example>.png`` alone.
FILES = {"demo": {"base.png", "density.png", "mixing.png", "report.html"}, "rows": {"side_by_side.png"}}


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def invoke(name: str, output: Path) -> str:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Notes on the table")  # rows that break a rule of the schema
        arguments = ["--smoke", "--output", str(output)]
        return CliRunner().invoke(load(name).main, arguments, catch_exceptions=False).output


def released_rows(text: str) -> pd.DataFrame:
    """The rows that ``constraints.py`` prints under their heading."""
    lines = text.split("Public: 2 rows")[1].splitlines()[1:4]
    return pd.DataFrame([line.split() for line in lines[1:]], columns=lines[0].split())


def check_rows(text: str, output: Path) -> None:
    public = next(output.glob("release-*/public"))
    assert sorted(path.name for path in public.iterdir()) == ["rows.card.html", "rows.card.json", "rows.csv"]
    assert len(pd.read_csv(public / "rows.csv")) == 2
    assert "can still pay for: 0" in text


def check_constraints(text: str, output: Path) -> None:
    rows = released_rows(text)
    rows["deductible_plan"] = rows["deductible_plan"] == "True"
    assert len(rows) == 2
    assert not load("constraints").breaks_a_rule(rows.astype({"max_expense": int})).any()
    broken = re.search(r"Without them (\d+) of 100", text)
    assert broken is not None
    assert int(broken[1]) > 20


def check_ledger(text: str, output: Path) -> None:
    with Ledger(next(output.glob("ledger-*/budget.db"))) as ledger:
        assert [charge.guarantee.epsilon for charge in ledger.charges("rand-1982")] == pytest.approx([1.0, 1.5, 0.5])
        assert ledger.spent("rand-1982").epsilon == pytest.approx(3.0)
        assert ledger.verify().ok
    assert text.count("Refused: ") == 1
    assert len(list(output.glob("ledger-*/for-*/rows.csv"))) == 3
    assert not list(output.glob("ledger-*/for-a-second-lecture/*"))


def check_public_rows(text: str, output: Path) -> None:
    distances = re.findall(r"(ranges alone|public rows) +(base|released rows) +([\d.]+)", text)
    assert [tuple(one[:2]) for one in distances[1::2]] == [
        ("ranges alone", "released rows"),
        ("public rows", "released rows"),
    ]
    # Public rows are worth more than any fit.
    assert float(distances[2][2]) < 0.3 < float(distances[1][2])


def check_mixing_report(text: str, output: Path) -> None:
    short, long = text.split("16 chains of HMC")
    assert "FAILED: 4 chains of 200 draws" in short
    assert "ok      exact draws" in long


def check_stream(text: str, output: Path) -> None:
    gains = re.findall(r"^ *([\d.]+) +(-?[\d.]+) +(-?[\d.]+)$", text, re.MULTILINE)
    assert len(gains) == 6
    for epsilon, held, read in gains:
        assert -0.05 < float(held) <= float(epsilon) / 2  # a priori: half of epsilon at most
        assert float(read) == pytest.approx(float(held), abs=0.1 * float(epsilon))


def check_demo(text: str, output: Path) -> None:
    assert "At least 79 in 100 such batches" in text
    assert "4 chains of 100 draws, lockstep_hmc" in text


def check_prior(text: str, output: Path) -> None:
    assert len(re.findall(r"(?:public base|private prior q) +bias -?[\d.]+ \+- [\d.]+, error", text)) == 2


def check_likelihood(text: str, output: Path) -> None:
    found = re.findall(r"found (\d+), false alarms (\d+)", text)
    assert len(found) == 2
    assert int(found[1][0]) > int(found[0][0])  # of the private density, and of its base


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in NAMES])
def test_an_example_in_small(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scale_calibration(monkeypatch)  # certificates are proved on fewer draws
    text = invoke(name, tmp_path)
    files = {path.name: path for path in tmp_path.iterdir() if path.is_file()}
    assert set(files) == FILES.get(name, {f"{name}.png"})
    assert all(path.stat().st_size > 8_000 for path in files.values())
    check: Callable[[str, Path], None] = globals()[f"check_{name}"]
    check(text, tmp_path)


@pytest.mark.slow
def test_the_stream_in_two_processes(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += [str(EXAMPLES / "stream.py"), "--smoke", "--output", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    completed = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.count("2 processes") == 1  # the first one speaks
    check_stream(completed.stdout, tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_short_and_says_what_may_be_released(name: str) -> None:
    source = (EXAMPLES / f"{name}.py").read_text()
    assert len(source.splitlines()) < 120
    docstring = " ".join(source.split('"""')[1].split())
    assert "May be released: " in docstring
    assert f"python examples/{name}.py" in docstring
    assert f"| `{name}.py` |" in (EXAMPLES / "README.md").read_text()


@pytest.mark.slow
def test_chains_of_the_clinic_agree_with_quadrature() -> None:
    example = load("prior")
    quadrature = ClinicQuadrature(example.TOP, example.BIAS_SCALE, example.READING_SCALE)
    q = make_density(dist.Uniform(0.0, example.TOP), link="tanh")
    readings = torch.tensor([14.0, 9.5, 31.0])
    posterior = quadrature.posterior(q.log_prob(quadrature.scores).double(), readings)
    assert float(posterior.bias_density.sum()) / 3 == pytest.approx(1)  # biases are a third apart
    options = {"full_mass": True, "target_accept_prob": 0.7}
    for kernel, num_chains, of_kernel in (("nuts", 2, options), ("lockstep_hmc", 16, {})):
        chains = run_mcmc(
            example.model,
            kernel,
            150,
            80,
            num_chains,
            seed=1,
            progress=False,
            model_args=(q, readings),
            kernel_options=of_kernel,
            num_workers=1,
        )
        drawn = {"bias": (chains.draws["bias"], posterior.bias_mean)}
        drawn |= {
            f"score {row}": (chains.draws["score"][..., row], float(posterior.score_means[row])) for row in range(3)
        }
        for name, (values, exact) in drawn.items():
            off, ess = errors_off(values, exact)
            assert abs(off) < 4.5, (kernel, name)
            assert ess > 50, (kernel, name)


@pytest.mark.slow
def test_what_a_private_prior_gains() -> None:
    """The figures of docs/models.md, which are of 1,000 clinics: the error of a score in points."""
    example = load("prior")
    cohort, people = example.load_scores(torch.Generator().manual_seed(20))
    assert len(cohort) > 2 * len(people) > 5000
    assert 0 <= float(cohort.min()) <= float(cohort.max()) <= example.TOP
    quadrature = ClinicQuadrature(example.TOP, example.BIAS_SCALE, example.READING_SCALE)
    q = DensityRatio(dist.Uniform(0.0, example.TOP), seed=0, progress=False).fit(cohort).mollify(1.0)
    log_priors = {
        "base": torch.zeros_like(quadrature.scores),
        "q": q.log_prob(quadrature.scores).double(),
        "table": quadrature.of_the_bare_table(cohort),
    }
    errors = quadrature.score_errors(log_priors, people, 250, 8, seed=2)
    assert errors == pytest.approx({"base": 9.8, "q": 6.3, "table": 4.6}, abs=0.6)
    low = quadrature.scores < 18
    assert float(log_priors["q"].softmax(0)[low].sum()) == pytest.approx(0.48, abs=0.03)


def test_quadrature_of_a_conjugate_clinic() -> None:
    """With a normal prior of scores, bias and scores are jointly normal: means by solving a linear system."""
    example = load("prior")
    quadrature = ClinicQuadrature(example.TOP, example.BIAS_SCALE, example.READING_SCALE)
    readings = torch.tensor([28.0, 35.0], dtype=torch.float64)
    posterior = quadrature.posterior(dist.Normal(30.0, 4.0).log_prob(quadrature.scores), readings)
    covariance = 16 * torch.eye(2).double() + example.BIAS_SCALE**2 + example.READING_SCALE**2 * torch.eye(2).double()
    weights = torch.linalg.solve(covariance, readings - 30)
    bias_variance = example.BIAS_SCALE**2 * (1 - example.BIAS_SCALE**2 * torch.linalg.inv(covariance).sum())
    assert posterior.bias_mean == pytest.approx(float(example.BIAS_SCALE**2 * weights.sum()), abs=2e-3)
    assert posterior.bias_deviation == pytest.approx(float(bias_variance.sqrt()), abs=2e-3)
    assert torch.allclose(posterior.score_means, 30 + 16 * weights, atol=2e-3)


@pytest.mark.slow
def test_chains_of_the_survey_agree_with_quadrature() -> None:
    example = load("likelihood")
    generator = torch.Generator().manual_seed(3)
    table, people = example.load_rows(generator)
    assert len(table) > 2 * len(people) > 5000
    assert bool(example.MISREAD.support.check(table).all())
    rows = people[torch.randint(len(people), (200,), generator=generator)]
    misread = torch.rand(200, generator=generator) < 0.2
    rows = torch.where(misread[:, None], example.MISREAD.sample((200,)), rows)
    q = make_density(example.BASE)
    log_odds = (example.MISREAD.log_prob(rows) - q.log_prob(rows)).double()
    posterior = survey_posterior(log_odds)
    assert float(posterior.density.mean()) == pytest.approx(1)
    chains = run_mcmc(example.model, "nuts", 120, 60, 2, seed=1, progress=False, model_args=(q, rows), num_workers=1)
    shares = chains.draws["share"].double()
    of_rows = row_probs(shares[..., None], log_odds)
    drawn = [(shares, posterior.mean), (shares**2, posterior.mean**2 + posterior.deviation**2)]
    drawn += [(of_rows[..., row], float(posterior.row_probs[row])) for row in range(3)]
    assert max(abs(errors_off(values, exact)[0]) for values, exact in drawn) < 4.5
    assert torch.allclose(example.misread_probs(q, rows, chains).double(), of_rows.mean((0, 1)), atol=1e-5)


def test_quadrature_of_a_survey_without_information() -> None:
    """Without information the posterior is the prior; with certain rows it is conjugate."""
    prior = survey_posterior(torch.zeros(5, dtype=torch.float64))
    assert prior.mean == pytest.approx(1 / 4, abs=1e-4)
    certain = survey_posterior(torch.tensor([200.0] * 2 + [-200.0] * 8, dtype=torch.float64))
    assert certain.mean == pytest.approx(3 / 14, abs=1e-4)  # Beta(1 + 2, 3 + 8)
    assert torch.allclose(certain.row_probs, torch.tensor([1.0] * 2 + [0.0] * 8).double())


@pytest.mark.slow
def test_the_page_on_models_runs() -> None:
    page = (ROOT / "docs" / "models.md").read_text()
    blocks = [part.split("```")[0] for part in page.split("```python\n")[1:]]
    assert len(blocks) >= 8
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)
    q, posterior = names["q"], names["posterior"]
    assert isinstance(q, MollifiedExpFamily)
    assert isinstance(posterior, MollifiedExpFamily)
    assert posterior.guarantee == posterior_guarantee(q)
