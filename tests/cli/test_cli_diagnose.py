"""``diagnose``: chains as long as they need, columns by their names, and what is said of released rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyro.distributions as dist
import pytest
import torch
from cli_words import Run
from densities import make_density, normal

import pyro_mbde
from pyro_mbde import Chains, Schema, pictures
from pyro_mbde.cli import diagnose
from pyro_mbde.diagnostics import exact
from pyro_mbde.tables.files import TableModel

UNAFFECTED = "Rows from `pyro-mbde release` do not depend on this"


@pytest.fixture(autouse=True)
def fewer_exact_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fifth: shares have larger errors by chance, which the comparison takes into account."""
    monkeypatch.setattr(exact, "_NUM_EXACT_DRAWS", exact._NUM_EXACT_DRAWS // 5)


@pytest.fixture
def unwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures are made, and not written."""
    monkeypatch.setattr(pictures, "write_picture", lambda figure, path: None)


@pytest.fixture
def lengths(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Shorter chains to begin and to end with; how long they were made."""
    monkeypatch.setattr(diagnose, "MIN_LENGTH", 100)
    monkeypatch.setattr(diagnose, "MAX_LENGTH", 1600)
    made: list[int] = []
    run, resume = pyro_mbde.run_mcmc, pyro_mbde.resume_mcmc

    def keep(chains: Chains) -> Chains:
        made.append(chains.num_samples)
        return chains

    monkeypatch.setattr(pyro_mbde, "run_mcmc", lambda *words, **how: keep(run(*words, **how)))
    monkeypatch.setattr(pyro_mbde, "resume_mcmc", lambda *words, **how: keep(resume(*words, **how)))
    return made


def test_passed(model: Path, run: Run) -> None:
    words = ("diagnose", model, "--seed", 0, "--num-samples", 400, "--num-chains", 8, "--warmup-steps", 200)
    result = run(*words, "--json")
    document = json.loads(result.stdout)
    assert document["passed"]
    assert document["released_rows"].startswith(UNAFFECTED)
    assert [parameter["name"] for parameter in document["parameters"]] == ["age", "visits"]
    assert Path("model.mixing.png").read_bytes().startswith(b"\x89PNG")
    assert Path("model.mixing.png").stat().st_mode & 0o777 == 0o600
    assert "as sensitive as the table" in result.stderr
    assert "--force" in run(*words, code=1).stderr


def test_failed(model: Path, run: Run) -> None:
    words = ("--num-samples", 10, "--num-chains", 2, "--warmup-steps", 0, "-o", "m.svg")
    text = run("diagnose", model, *words, code=4).stdout
    assert "FAILED" in text
    assert "\n- age: " in text
    assert "x[" not in text
    assert UNAFFECTED in text
    picture = Path("m.svg").read_text()
    assert "<svg" in picture
    assert "x[" not in picture
    run("diagnose", model, "-o", "m.txt", code=2)


@pytest.mark.usefixtures("unwritten")
def test_interrupted(model: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    real = pyro_mbde.run_mcmc
    monkeypatch.setattr(
        pyro_mbde, "run_mcmc", lambda *words, num_samples, **how: real(*words, num_samples=num_samples // 2, **how)
    )
    words = ("--num-samples", 40, "--num-chains", 2, "--warmup-steps", 10)
    assert "20 draws" in run("diagnose", model, *words, code=130).stdout
    monkeypatch.setattr(diagnose, "MIN_LENGTH", 40)
    assert "20 draws" in run("diagnose", model, *words[2:], "--force", code=130).stdout


@pytest.mark.usefixtures("unwritten")
def test_chains_as_long_as_they_need(lengths: list[int], model: Path, run: Run) -> None:
    document = json.loads(
        run("diagnose", model, "--seed", 0, "--num-chains", 8, "--warmup-steps", 200, "--json").stdout
    )
    assert document["passed"]
    assert len(lengths) > 1
    assert lengths == [100 * 2**place for place in range(len(lengths))]
    assert document["num_samples"] == lengths[-1]


@pytest.mark.usefixtures("unwritten")
def test_chains_that_never_mix(lengths: list[int], run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stays in the mode that it started in."""
    monkeypatch.setattr(diagnose, "MAX_LENGTH", 400)
    modes = dist.MixtureSameFamily(
        dist.Categorical(torch.ones(2)), dist.Normal(torch.tensor([-40.0, 40.0]), torch.ones(2))
    )
    make_density(modes).save("modes.pt")
    text = run("diagnose", "modes.pt", "--seed", 0, "--num-chains", 4, "--warmup-steps", 100, code=4).stdout
    assert lengths == [100, 200, 400]
    assert "the chains disagree" in text
    assert "FAILED: 4 chains of 400 draws" in text


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda draws: draws[:1].expand(draws.shape), "equal draws"),
        (lambda draws: draws.clamp(max=60.0), "wrong target"),
        (lambda draws: torch.where(torch.rand(draws.shape) < 0.01, torch.nan, draws), "NaN or infinite"),
    ],
    ids=["copies", "cut off", "not finite"],
)
@pytest.mark.slow
def test_what_longer_chains_cannot_mend_ends_the_run(
    spoil: Callable[[torch.Tensor], torch.Tensor],
    reason: str,
    model: Path,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def draw(density: Any, **_: object) -> Chains:
        draws = spoil(density.sample(torch.Size([4, 2000])))
        return Chains({"x": draws}, {}, (1, 2, 3, 4), 0, "nuts", density)

    monkeypatch.setattr(pyro_mbde, "run_mcmc", draw)
    monkeypatch.setattr(pyro_mbde, "resume_mcmc", lambda *_, **__: pytest.fail("went on"))
    assert reason in run("diagnose", model, code=4).stdout


@pytest.mark.usefixtures("unwritten")
def test_a_model_without_a_schema(run: Run) -> None:
    make_density(normal(2)).save("bare.pt")
    words = ("--num-samples", 10, "--num-chains", 2, "--warmup-steps", 0)
    assert "x[0]" in run("diagnose", "bare.pt", *words, code=4).stdout


def nine_columns(seed: int, num_rows: int = 3000) -> tuple[pd.DataFrame, Schema]:
    """A made-up table as clinics have it: mixed scales, correlated columns."""
    generator = np.random.default_rng(seed)
    age = generator.gamma(9, 5.2, num_rows).clip(18, 99)
    sex = generator.integers(0, 2, num_rows)
    height = generator.normal(164 + 13 * sex, 7).clip(130, 210)
    bmi = np.exp(generator.normal(3.2 + 0.003 * (age - 45), 0.16)).clip(14, 60)
    table = pd.DataFrame(
        {
            "age": age,
            "sex": sex,
            "height": height,
            "weight": (bmi * (height / 100) ** 2).clip(35, 200),
            "bmi": bmi,
            "systolic": generator.normal(102 + 0.45 * age + 0.6 * (bmi - 25), 13).clip(80, 240).round(),
            "income": np.exp(generator.normal(10.2 + 0.35 * sex, 0.7)).clip(0, 1e6),
            "visits": generator.poisson(np.exp(0.025 * age - 0.6)).clip(0, 99),
            "smoker": generator.random(num_rows) < 0.3,
        }
    ).astype({"smoker": int})
    ends = {"age": 110, "height": 230, "weight": 250, "bmi": 80, "systolic": 300, "income": 1e7, "visits": 365}
    columns = [{"name": name, "low": 0, "high": ends.get(name, 1)} for name in table]
    for column in columns:
        if column["name"] in ("sex", "systolic", "visits", "smoker"):
            column["kind"] = "integer"
        if column["name"] in ("income", "visits"):
            column["scale"] = "log1p"
    return table, Schema.from_dict({"columns": columns})


@pytest.mark.slow
def test_a_default_model_of_nine_columns(run: Run) -> None:
    table, schema = nine_columns(0)
    rows = schema.to_tensor(table)
    ratio = pyro_mbde.DensityRatio(schema.base(), seed=0, progress=False).fit(rows)
    TableModel(ratio.mollify(1.0), schema).save("nine.pt")
    document = json.loads(run("diagnose", "nine.pt", "--seed", 0, "--json").stdout)
    assert document["passed"], document["failures"]
    assert document["parameters"][4]["name"] == "bmi"


@pytest.mark.parametrize("source", ["model.png", "options.svg"])
def test_what_it_reads_is_never_replaced(source: str, model: Path, run: Run) -> None:
    model.rename("model.png")
    Path("options.svg").write_text("[diagnose]\nnum-chains = 2\n")
    before = Path(source).read_bytes()
    words = ("diagnose", "model.png", "--config", "options.svg", "-o", source, "--force")
    assert f"'--output' names {source}, which this command reads" in run(*words, code=2).stderr
    assert Path(source).read_bytes() == before
