"""How far independence chains and fresh chains can be from their target, and what their last states promise."""

from __future__ import annotations

import math

import pyro.distributions as dist
import pytest
import torch
from densities import make_density, normal

from pyro_mbde import MollifiedExpFamily, compose, fresh_chains, run_mcmc, total_variation_bound
from pyro_mbde.density.bounds import Bounds
from pyro_mbde.sampling.independence import fresh_guarantee


def independence_matrix(base: torch.Tensor, tilts: torch.Tensor) -> torch.Tensor:
    """Transition matrix of the kernel on a finite base, row by row."""
    moves = base * (tilts - tilts.unsqueeze(1)).clamp(max=0).exp()
    moves.fill_diagonal_(0)
    return moves + torch.diag(1 - moves.sum(1))


def target_of(base: torch.Tensor, tilts: torch.Tensor) -> torch.Tensor:
    weights = base * tilts.exp()
    return weights / weights.sum()


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0, 5.0])
def test_the_bound_against_total_variation_on_a_grid(epsilon: float) -> None:
    """A density on a line, cut into 200 cells: from the worst start, at every step, the bound is never violated.

    Proof: docs/proofs.md, *Distance of independence chains*.
    """
    density = make_density(dist.Normal(0.0, 1.0), epsilon=epsilon, gain=10.0)
    points = torch.linspace(-4, 4, 200)
    base = density.base.log_prob(points).double().softmax(0)
    tilts = density.tilt(points)
    matrix, target = independence_matrix(base, tilts), target_of(base, tilts)
    law = torch.eye(200, dtype=torch.float64)
    for step in range(60):
        distance = float((law - target).abs().sum(1).max()) / 2
        assert distance <= total_variation_bound(density.bounds, step) + 1e-12
        law = law @ matrix


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0, 5.0])
def test_the_bound_against_chains(epsilon: float) -> None:
    """Chains of the library itself, on a finite base: what their histograms show is within the bound they carry."""
    density = make_density(dist.Categorical(torch.tensor([0.1, 0.2, 0.3, 0.4])), epsilon=epsilon, gain=10.0)
    num_chains = 8000
    worst = int(density.tilt(torch.arange(4)).argmax())
    chains = run_mcmc(
        density,
        "independence",
        8,
        0,
        num_chains,
        seed=0,
        progress=False,
        initial_values={"x": torch.full((num_chains,), worst)},
    )
    probabilities = density.log_prob(torch.arange(4)).exp()
    for step in range(8):
        shares = torch.bincount(chains.draws["x"][:, step], minlength=4) / num_chains
        bound = chains.sample_stats["total_variation"][0, step]
        assert float(bound) == pytest.approx(total_variation_bound(density.bounds, step + 1))
        assert float((shares - probabilities).abs().sum()) / 2 <= float(bound) + 4 / math.sqrt(num_chains)


def test_the_bound_is_nearly_reached() -> None:
    """Almost all of the base at the lowest tilt: a chain that starts at the highest stays for as long as it can."""
    base = torch.tensor([1 - 1e-6, 1e-6], dtype=torch.float64)
    tilts = torch.tensor([-1.0, 1.0], dtype=torch.float64)
    matrix, target = independence_matrix(base, tilts), target_of(base, tilts)
    law = torch.tensor([0.0, 1.0], dtype=torch.float64)
    for step in range(1, 10):
        law = law @ matrix
        distance = float((law - target).abs().sum()) / 2
        bound = total_variation_bound(Bounds(-1.0, 1.0), step)
        assert 0.999 * bound < distance <= bound


def test_the_bound_at_its_ends() -> None:
    assert total_variation_bound(Bounds(-1.0, 1.0), 0) == 1.0
    assert total_variation_bound(Bounds(0.0, 0.0), 1) == 0.0
    assert total_variation_bound(Bounds(-350.0, 350.0), 10**6) == 1.0
    with pytest.raises(ValueError, match="num_steps must be at least 0"):
        total_variation_bound(Bounds(-1.0, 1.0), -1)


def test_resumed_chains_count_all_their_steps() -> None:
    density = make_density(normal(2))
    chains = run_mcmc(density, "independence", 5, 3, 2, seed=0, progress=False)
    expected = [total_variation_bound(density.bounds, step) for step in range(4, 9)]
    assert chains.sample_stats["total_variation"][1].tolist() == pytest.approx(expected)


def metropolis_matrix(proposal: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Metropolis-Hastings on finitely many states with any proposal matrix."""
    flow = target.unsqueeze(1) * proposal
    moves = torch.where(proposal > 0, torch.minimum(flow, flow.T) / target.unsqueeze(1), 0.0)
    moves.fill_diagonal_(0)
    return moves + torch.diag(1 - moves.sum(1))


def cyclic_matrix(target: torch.Tensor) -> torch.Tensor:
    """A kernel that leaves the target invariant without being reversible: a flow around a circle."""
    flow = float(target.min()) * torch.ones(len(target), dtype=torch.float64)
    return torch.diag(1 - flow / target) + torch.diag(flow / target).roll(1, 1)


@pytest.mark.parametrize("kernel", ["independence", "neighbours", "random", "cyclic"])
@pytest.mark.parametrize("width", [0.1, 1.0, 3.0, 10.0])
def test_the_lemma_on_finite_chains(kernel: str, width: float) -> None:
    """Hostile tables: tilts at the ends of the bounds on any set of states. No step breaks the guarantee.

    Proof: docs/proofs.md, *Last states of fresh chains*.
    """
    num_states = 6
    bounds = Bounds(-0.3 * width, 0.7 * width)
    guarantee = fresh_guarantee(bounds)
    for trial in range(30):
        base = torch.rand(num_states, dtype=torch.float64) ** (1 + trial % 4) + 1e-6
        base /= base.sum()
        laws = []
        for _ in range(2):
            high = torch.rand(num_states) < torch.rand(())
            tilts = torch.where(high, bounds.high, bounds.low).double()
            target = target_of(base, tilts)
            proposal = {
                "independence": base.expand(num_states, -1),
                "neighbours": (torch.eye(num_states).roll(1, 1) + torch.eye(num_states).roll(-1, 1)).double() / 2,
                "random": torch.rand(num_states, num_states, dtype=torch.float64),
                "cyclic": torch.eye(num_states, dtype=torch.float64),
            }[kernel]
            matrix = (
                cyclic_matrix(target)
                if kernel == "cyclic"
                else metropolis_matrix(proposal / proposal.sum(1, keepdim=True), target)
            )
            assert torch.allclose(target @ matrix, target, atol=1e-12)
            law, path = base, [base]
            for _ in range(40):
                law = law @ matrix
                path.append(law)
            laws.append(torch.stack(path))
            # the lemma itself: within R of the base, for any number of steps
            assert float((laws[-1] / base).log().abs().max()) <= width + 1e-9
        ratio = (laws[0] / laws[1]).log()
        assert float(ratio.abs().max()) <= guarantee.epsilon + 1e-9
        assert float((ratio.max(1).values - ratio.min(1).values).max()) <= guarantee.log_ratio_range + 1e-9


def test_the_guarantee_is_of_the_right_size() -> None:
    """Two tables whose chains do differ by nearly 2R, so that nothing smaller would be true."""
    width = 1.0
    base = torch.tensor([1e-4, 1 - 2e-4, 1e-4], dtype=torch.float64)
    ends = [torch.tensor([width, 0.0, 0.0]).double(), torch.tensor([0.0, width, width]).double()]
    laws = [base @ torch.matrix_power(independence_matrix(base, tilts), 200) for tilts in ends]
    assert float((laws[0] / laws[1]).log().max()) > 0.99 * fresh_guarantee(Bounds(0.0, width)).epsilon


def test_other_starts_are_not_covered() -> None:
    """A chain that starts at a row of the table, or at its own last state, says more than 2R after a step."""
    width = 0.5
    base = torch.tensor([0.01, 0.99], dtype=torch.float64)
    matrix = independence_matrix(base, torch.tensor([width, 0.0]).double())
    law = torch.tensor([1.0, 0.0], dtype=torch.float64) @ matrix
    assert float((law / base).log().max()) > 2 * width


def test_last_states_have_the_law_they_should() -> None:
    density = make_density(dist.Categorical(torch.tensor([0.1, 0.2, 0.3, 0.4])), epsilon=5.0, gain=10.0)
    points = torch.arange(4)
    base = density.base.log_prob(points).exp().double()
    matrix = independence_matrix(base, density.tilt(points))
    num_draws = 40_000
    for num_steps in (0, 1, 3):
        draws = fresh_chains(density, num_draws, num_steps, progress=False)
        expected = base @ torch.matrix_power(matrix, num_steps)
        counts = torch.bincount(draws.values, minlength=4)
        chi_square = float(((counts - num_draws * expected) ** 2 / (num_draws * expected)).sum())
        assert chi_square < 36  # 3 degrees of freedom, 8e-8
        assert draws.total_variation == total_variation_bound(density.bounds, num_steps)


def test_fresh_chains_come_near_the_density() -> None:
    density = make_density(normal(2), epsilon=2.0)
    draws = fresh_chains(density, 10_000, 40, progress=False)
    exact = density.sample((20_000,))
    assert draws.total_variation < 1e-6
    errors = exact.std(0) * math.sqrt(1 / 10_000 + 1 / 20_000)
    assert bool(((draws.values.mean(0) - exact.mean(0)).abs() < 5 * errors).all())


def test_fresh_chains_promise_the_a_priori_guarantee() -> None:
    density = make_density(normal(2))
    guarantee = fresh_chains(density, 2, 3, progress=False).guarantee
    assert guarantee.epsilon == pytest.approx(2 * density.bounds.width)
    assert (guarantee.delta, guarantee.log_ratio_range) == (0.0, 4 * density.bounds.width)
    assert compose(guarantee, 10).epsilon == pytest.approx(10 * guarantee.epsilon)


def test_fresh_chains_take_fresh_randomness(plane: MollifiedExpFamily) -> None:
    torch.manual_seed(0)
    state = torch.get_rng_state()
    first = fresh_chains(plane, 4, 5, progress=False)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(0)
    assert not torch.equal(first.values, fresh_chains(plane, 4, 5, progress=False).values)
    with pytest.warns(UserWarning, match="These draws are seeded"):
        seeded = fresh_chains(plane, 4, 5, seed=3, progress=False)
    with pytest.warns(UserWarning, match="These draws are seeded"):
        assert torch.equal(seeded.values, fresh_chains(plane, 4, 5, seed=3, progress=False).values)


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"q": normal(2)}, TypeError, "q must be a MollifiedExpFamily"),
        ({"num_draws": 0}, ValueError, "num_draws must be at least 1"),
        ({"num_steps": -1}, ValueError, "num_steps must be at least 0"),
        ({"num_steps": 1.5}, TypeError, "num_steps must be a whole number"),
        ({"seed": -1}, ValueError, "seed must be at least 0"),
    ],
)
def test_fresh_arguments(
    plane: MollifiedExpFamily, arguments: dict[str, object], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        fresh_chains(**{"q": plane, "num_draws": 2, "num_steps": 2, **arguments})  # type: ignore[arg-type]
