"""Chains as data: pickling, and ArviZ of both major versions."""

from __future__ import annotations

import pickle

import arviz
import pytest
import torch
from densities import make_density, normal

from pyro_mbde import Chains, fresh_chains, run_mcmc
from pyro_mbde.mcmc.chains import ChainState


def make_chains(num_chains: int = 4, num_samples: int = 100, **sites: torch.Tensor) -> Chains:
    shape = num_chains, num_samples
    return Chains(
        draws=sites or {"x": torch.randn(*shape, 2), "scale": torch.rand(shape), "count": torch.randint(9, shape)},
        sample_stats={
            "lp": torch.randn(shape),
            "acceptance_rate": torch.rand(shape),
            "energy": torch.randn(shape),
            "diverging": torch.zeros(shape, dtype=torch.bool),
            "step_size": torch.ones(shape),
            "total_variation": torch.rand(shape),
        },
        seeds=tuple(range(num_chains)),
        warmup_steps=50,
        kernel="nuts",
    )


def test_pickling() -> None:
    density = make_density(normal(2))
    state = ChainState({"x": torch.zeros(4, 2)}, {"step_size": 0.5}, (torch.get_rng_state(),))
    chains = Chains(
        {"x": density.sample((4, 10))}, {"lp": torch.zeros(4, 10)}, (1, 2, 3, 4), 5, "hmc", density, states=(state,)
    )
    copy = pickle.loads(pickle.dumps(chains))
    assert torch.equal(copy.draws["x"], chains.draws["x"])
    assert torch.equal(copy.sample_stats["lp"], chains.sample_stats["lp"])
    assert (copy.seeds, copy.warmup_steps, copy.kernel) == (chains.seeds, 5, "hmc")
    assert copy.states[0].adaptation == {"step_size": 0.5}
    assert torch.equal(copy.density.log_prob(chains.draws["x"]), density.log_prob(chains.draws["x"]))
    assert (chains.num_chains, chains.num_samples) == (4, 10)


def test_groups_and_attributes() -> None:
    chains = make_chains()
    data = chains.to_arviz()
    assert type(data).__name__ == ("DataTree" if int(arviz.__version__.split(".")[0]) >= 1 else "InferenceData")
    for name, value in chains.draws.items():
        assert data["posterior"][name].shape == value.shape
        assert (data["posterior"][name].to_numpy() == value.numpy()).all()
    assert set(data["sample_stats"].data_vars) == set(chains.sample_stats)
    assert data["sample_stats"]["diverging"].dtype == bool
    attributes = data["posterior"].attrs
    assert attributes["inference_library"] == "pyro_mbde"
    assert (attributes["sampler"], attributes["warmup_steps"], list(attributes["seeds"])) == ("nuts", 50, [0, 1, 2, 3])
    assert arviz.summary(data, var_names=["x", "scale"]).shape[0] == 3
    assert arviz.ess(data)["x"].shape == (2,)


def test_coordinates_and_dimensions() -> None:
    chains = make_chains(x=torch.randn(4, 10, 2, 3), y=torch.randn(4, 10, 3))
    data = chains.to_arviz(
        coords={"column": ["age", "income", "visits"], "unused": [1, 2]},
        dims={"x": ["row", "column"], "y": ["column"]},
    )
    assert data["posterior"]["x"].dims == ("chain", "draw", "row", "column")
    income = data["posterior"]["y"].sel(column="income").to_numpy()
    assert (income == chains.draws["y"][..., 1].numpy()).all()


def test_what_is_no_usual_run() -> None:
    """More chains than draws, no statistics, a model's gradients, a dtype that NumPy has not."""
    assert make_chains(20, 3).to_arviz()["posterior"]["x"].shape == (20, 3, 2)
    draws = torch.randn(2, 5, dtype=torch.bfloat16, requires_grad=True)
    data = Chains({"x": draws}, {}, (1, 2), 0, "hmc").to_arviz()
    assert data["posterior"]["x"].shape == (2, 5)
    assert "sample_stats" not in (data.groups() if callable(data.groups) else data.children)


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"coords": ["a", "b"]}, TypeError, "coords must map names to sequences"),
        ({"dims": {"x": "column"}}, TypeError, "dims must map names to sequences"),
        ({"dims": {"z": ["column"]}}, ValueError, "dims must name sites among x, y, got dims='z'"),
        ({"dims": {"x": ["a", "b"]}}, ValueError, "dims must name the 1 event dimensions of x"),
        ({"dims": {"x": ["chain"]}}, ValueError, "dims must name .* The dimensions chain and draw are named already"),
        ({"dims": {"x": ["a"], "y": ["a"]}}, ValueError, "dims must use each name for one size, and a has size 2"),
        ({"dims": {"x": ["a"]}, "coords": {"a": [1, 2, 3]}}, ValueError, "coords must hold 2 labels for a"),
    ],
)
def test_arguments(arguments: dict[str, object], error: type[Exception], match: str) -> None:
    chains = make_chains(x=torch.randn(4, 10, 2), y=torch.randn(4, 10, 3))
    with pytest.raises(error, match=match):
        chains.to_arviz(**arguments)  # type: ignore[arg-type]  # some are wrong on purpose


@pytest.mark.parametrize("site", ["chain", "draw"])
def test_sites_named_as_arviz_names_dimensions(site: str) -> None:
    with pytest.raises(
        ValueError, match=f"site must not be called chain or draw.*got site='{site}'. .*rename the site"
    ):
        make_chains(**{site: torch.randn(4, 10)}).to_arviz()


def test_a_slash_in_a_name() -> None:
    chains = make_chains(**{"layer/weight": torch.randn(4, 10)})
    if int(arviz.__version__.split(".")[0]) >= 1:
        with pytest.raises(ValueError, match="nor contain a slash"):
            chains.to_arviz()
    else:
        assert chains.to_arviz()["posterior"]["layer/weight"].shape == (4, 10)


def test_a_line_says_what_there_is_and_no_draw() -> None:
    """Whatever holds draws of a density prints in one line without them."""
    q = make_density(normal(2))
    chains = run_mcmc(q, "random_walk", 50, 10, num_chains=2, seed=0, progress=False)
    assert repr(chains) == "Chains(random_walk: 2 chains of 50 draws; x[2])"
    many = Chains({f"s{index}": torch.zeros(2, 5) for index in range(10)}, {}, (1, 2), 0, "nuts")
    assert repr(many) == "Chains(nuts: 2 chains of 5 draws; s0, s1, s2, s3, s4, s5, s6, s7 and 2 more)"
    drawn = fresh_chains(q, 3, 5, progress=False)
    for shown in (chains, chains.states[0], drawn, q.rejection_draws(4), many):
        assert "tensor" not in repr(shown) and len(repr(shown)) < 200 and "\n" not in repr(shown)
    assert f"values of shape (3, 2), {drawn.guarantee}, total_variation=" in repr(drawn)
    assert repr(q.rejection_draws(4)) == "RejectionDraws(values of shape (4, 2))"
