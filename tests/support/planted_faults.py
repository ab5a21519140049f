"""Training functions that claim epsilon = 1 and are wrong, each in one way: what an audit has to find."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pyro.distributions as dist
import torch
from hostile import cancelling
from planted_wide_faults import (
    COLUMNS,
    batch_at_the_price_of_a_smaller_epsilon,
    batch_certified_as_a_row,
    batch_drawn_row_by_row,
    batch_networks_changed_after_certification,
    batch_with_a_row_too_many,
    columns_repeated_by_a_chain,
    rare_combination_of_values,
    separate_rows_at_the_price_of_one,
    shares_of_levels_from_the_table,
)
from quick_fits import BASE, EPSILON, LINE, QUICK, DrawsAlone, Overridden, disguise, quick_fit, quick_ratio
from torch import Tensor

from pyro_mbde import BoundedClassifiers, Bounds, Certificate, DensityRatio, LogNormalizer, MollifiedExpFamily
from pyro_mbde._torch_state import seeded
from pyro_mbde.density.base import as_features
from pyro_mbde.density.bounds import a_priori_guarantee, tilt_bounds
from pyro_mbde.density.scoring import score_rows
from pyro_mbde.experiments.baselines.unbounded import UnboundedMBDE
from pyro_mbde.training.density_ratio import LogRatio


def unbounded_boosting(table: Tensor) -> Any:
    """The variant of the published code."""
    trainer = UnboundedMBDE(BASE, EPSILON, 2, box=(-9.0, 9.0), weak_learner=QUICK, num_samples=1000, progress=False)
    return trainer.fit(table)


class _AcceptedByTilt(MollifiedExpFamily):
    """Draws follow ``tilt``, which a fault overrides."""

    def accepted_tilt(self, value: Tensor) -> Tensor:
        return score_rows(self.tilt, value)


class _Unclamped(_AcceptedByTilt):
    def tilt(self, value: Tensor) -> Tensor:
        return self.statistics.logits(as_features(value, self.base, self.dtype)).double() @ self.natural_params


def clamp_removed(table: Tensor) -> MollifiedExpFamily:
    """Logits in place of statistics."""
    return disguise(quick_fit(table), _Unclamped)


def standardised_base(table: Tensor) -> MollifiedExpFamily:
    """The base is scaled to the table."""
    base = dist.Normal(table.mean(0), table.std(0) + 0.1).to_event(1)
    return quick_fit(table, base=base)


def theta_twice_too_large(table: Tensor) -> MollifiedExpFamily:
    """Fitted at 2 epsilon, sold as epsilon."""
    q = quick_fit(table, 2 * EPSILON)
    q.guarantee = quick_fit(table).guarantee
    return q


class _Float32Statistics(BoundedClassifiers):
    """Bounded by log 2 as float32 rounds it: upwards."""

    def forward(self, value: Tensor) -> Tensor:
        bound = float(torch.tensor(math.log(2), dtype=torch.float32))
        return self.logits(value).clamp(-bound, bound)


class _NoClampAfterwards(_AcceptedByTilt):
    def tilt(self, value: Tensor) -> Tensor:
        statistics = self.statistics(as_features(value, self.base, self.dtype))
        return (statistics.double() * self.natural_params).sum(-1)


def float32_log_2(table: Tensor) -> MollifiedExpFamily:
    """Statistics above log 2 by what float32 rounds, 2e-9."""
    q = quick_fit(table)
    statistics = _Float32Statistics.from_state(q.statistics.config(), q.statistics.state_dict())
    return _NoClampAfterwards(q.base, statistics, q.natural_params, q.log_normalizer)


class _Float32Tilt(_AcceptedByTilt):
    def tilt(self, value: Tensor) -> Tensor:
        statistics = self.statistics(as_features(value, self.base, self.dtype))
        return ((statistics * self.natural_params.float()).sum(-1) * 1.0000002).double()


def tilt_in_float32(table: Tensor) -> MollifiedExpFamily:
    """The weighted sum is rounded to float32, by two units in the last place."""
    return disguise(quick_fit(table), _Float32Tilt)


class _WrongEnvelope(MollifiedExpFamily):
    def sample(self, sample_shape: Any = ()) -> Tensor:
        size = 40 * torch.Size(sample_shape).numel()
        proposals = self.base.sample(torch.Size([size]))
        log_acceptance = self.tilt(proposals) - (self.bounds.high - 0.3)
        return proposals[torch.rand(size).double() < log_acceptance.exp()][: size // 40]


def envelope_too_small(table: Tensor) -> MollifiedExpFamily:
    """Acceptance probabilities above 1, which count as 1."""
    return disguise(quick_fit(table), _WrongEnvelope)


def _uncertified(table: Tensor, log_normalizer: LogNormalizer | None) -> MollifiedExpFamily:
    q = quick_fit(table, 4 * EPSILON)
    bounds, certificate = Bounds(-0.3, 0.69), Certificate(0.005, 1e-9)
    arguments = {"bounds": bounds, "certificate": certificate}
    if log_normalizer is None:
        phi = MollifiedExpFamily.normalized(q.base, q.statistics, q.natural_params, bounds=bounds)
        log_normalizer = phi.log_normalizer
    return MollifiedExpFamily(q.base, q.statistics, q.natural_params, log_normalizer, **arguments)


def calibration_without_certificate(table: Tensor) -> MollifiedExpFamily:
    """Sold as calibrated, though nothing brought phi to 0."""
    return _uncertified(table, None)


def normaliser_said_to_be_zero(table: Tensor) -> MollifiedExpFamily:
    """Sold as calibrated, with a normaliser that was not computed."""
    return _uncertified(table, LogNormalizer(0.0, 1e-4))


def skew_picked_by_the_table(table: Tensor) -> MollifiedExpFamily:
    """A low skew where the table lies in the tail."""
    return quick_fit(table, calibrated=True, skew=0.2 if float(table.mean()) > 1 else 0.5)


def epsilon_picked_by_the_table(table: Tensor) -> MollifiedExpFamily:
    """Less privacy where the table lies in the tail, never above the claim."""
    return quick_fit(table, EPSILON if float(table.mean()) > 1 else EPSILON / 2)


class _NaNRegion(_AcceptedByTilt):
    def tilt(self, value: Tensor) -> Tensor:
        overflow = torch.where(value[..., 0].abs() > 3, math.inf, 0.0)
        return super().tilt(value) + (overflow - overflow)


def nan_region(table: Tensor) -> MollifiedExpFamily:
    """A network that overflows in the tail, whose NaN reaches the density."""
    return disguise(quick_fit(table), _NaNRegion)


def _random_walk(q: MollifiedExpFamily, num_draws: int) -> Tensor:
    """Eight chains that start at draws, interleaved: right in their marginal law."""
    state, states = q.sample((8,)), []
    for _ in range(math.ceil(num_draws / 8)):
        proposal = state + 1.5 * torch.randn_like(state)
        accept = torch.rand(8).log() < q.log_prob(proposal) - q.log_prob(state)
        state = torch.where(accept.unsqueeze(-1), proposal, state)
        states.append(state)
    return torch.cat(states)[:num_draws]


def trajectory_released(table: Tensor) -> Any:
    """The states of Markov chains, one after another."""
    return Overridden(quick_fit(table), _random_walk)


def _seeded_draws(q: MollifiedExpFamily, num_draws: int) -> Tensor:
    with seeded(0):
        return q.rejection_draws(num_draws).values if num_draws > 100 else q.rejection_draws(4000).values[:num_draws]


def seed_reused(table: Tensor) -> Any:
    """The same draws each time."""
    return Overridden(quick_fit(table), _seeded_draws)


def theta_too_large_behind_draws(table: Tensor) -> DrawsAlone:
    """Fitted at 8 epsilon, with nothing told."""
    q = quick_fit(table, 8 * EPSILON)
    return DrawsAlone(lambda num_draws: q.sample((num_draws,)))


def rows_among_the_draws(table: Tensor) -> DrawsAlone:
    """One draw in ten is a row of the table, as it is."""
    q = quick_fit(table)

    def draw(num_draws: int) -> Tensor:
        draws, rows = q.sample((num_draws,)), table[torch.randint(len(table), (num_draws,))]
        return torch.where(torch.rand(num_draws, 1) < 0.1, rows, draws)

    return DrawsAlone(draw)


class _Understated(MollifiedExpFamily):
    """Says half of what its bounds imply."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.guarantee = a_priori_guarantee(Bounds(*(end / 2 for end in tilt_bounds(self.natural_params))))


def guarantee_understated(table: Tensor) -> MollifiedExpFamily:
    """Fitted at epsilon, sold at half of it."""
    return disguise(quick_fit(table), _Understated)


class _Unnormalised(MollifiedExpFamily):
    def log_prob(self, value: Tensor) -> Tensor:
        return super().log_prob(value) + 0.05


def log_prob_shifted(table: Tensor) -> MollifiedExpFamily:
    """The log-density is off by a constant."""
    return disguise(quick_fit(table), _Unnormalised)


class _Restless(MollifiedExpFamily):
    def log_prob(self, value: Tensor) -> Tensor:
        return super().log_prob(value) + 0.01 * torch.randn(len(value))


def log_prob_at_random(table: Tensor) -> MollifiedExpFamily:
    """The log-density is noisy."""
    return disguise(quick_fit(table), _Restless)


def infinite_draws(table: Tensor) -> Any:
    """One draw in a hundred overflows."""

    def draw(q: MollifiedExpFamily, num_draws: int) -> Tensor:
        draws = q.sample((num_draws,))
        draws[::100] = math.inf
        return draws

    return Overridden(quick_fit(table), draw)


class _SummedInOrder(_AcceptedByTilt):
    def tilt(self, value: Tensor) -> Tensor:
        networks: Any = self.statistics.networks
        hidden = (value @ networks.weights[0][0] + networks.biases[0][0]).tanh()
        score = (hidden * networks.weights[1][0].squeeze(-1)).cumsum(-1)[..., -1]
        return (score.double() - self.offset).clamp(*self.bounds)


def certificate_of_another_function(table: Tensor) -> MollifiedExpFamily:
    """Certified as matrix products sum, drawn from as a loop would, with weights that cancel in one way alone."""
    sign = 1.0 if float(table.mean()) > 0.5 else -1.0
    q = LogRatio(LINE, cancelling(sign), progress=False).mollify(EPSILON)
    return disguise(q, _SummedInOrder, offset=q.offset, bounds=q.bounds, certificate=q.certificate)


def certificate_kept_in_conversion(table: Tensor) -> MollifiedExpFamily:
    """Converted to float64, with the guarantee of what it was converted from."""
    q = quick_ratio(table).mollify(EPSILON)
    wide = q.to(torch.float64)
    wide.guarantee = q.guarantee
    return wide


class _Lopsided(dist.Categorical):
    """Equal probabilities, draws that are not."""

    def log_prob(self, value: Tensor) -> Tensor:
        return torch.full(value.shape, -math.log(4.0))


FOUR = _Lopsided(torch.tensor([0.4, 0.2, 0.2, 0.2]))


class _DrawnByTheSampler(MollifiedExpFamily):
    def sample(self, sample_shape: Any = ()) -> Tensor:
        size = 40 * torch.Size(sample_shape).numel()
        proposals = self.base.sample(torch.Size([size]))
        accepted = torch.rand(size).double() < (self.tilt(proposals) - self.bounds.high).exp()
        return proposals[accepted][: size // 40]


def weights_that_are_not_the_law(table: Tensor) -> MollifiedExpFamily:
    """Calibrated exactly over a finite base, by probabilities that its sampler does not follow."""
    q = DensityRatio(FOUR, weak_learner=QUICK, ensemble_size=2, progress=False).fit(table).mollify(EPSILON)
    return disguise(q, _DrawnByTheSampler, offset=q.offset, bounds=q.bounds, certificate=q.certificate)


#: Bases of the faults that are not over :data:`BASE`.
OTHER_BASES: dict[Callable[[Tensor], Any], Any] = {
    certificate_of_another_function: LINE,
    weights_that_are_not_the_law: FOUR,
    shares_of_levels_from_the_table: COLUMNS,
    rare_combination_of_values: COLUMNS,
    columns_repeated_by_a_chain: COLUMNS,
}
#: Each fault with the kinds of findings that it has to raise.
FAULTS: dict[Callable[[Tensor], Any], set[str]] = {
    unbounded_boosting: {"epsilon"},
    clamp_removed: {"epsilon", "tilt", "range"},
    standardised_base: {"base", "epsilon"},
    theta_twice_too_large: {"epsilon", "claim"},
    float32_log_2: {"tilt"},
    tilt_in_float32: {"tilt"},
    envelope_too_small: {"draws"},
    calibration_without_certificate: {"certificate"},
    normaliser_said_to_be_zero: {"certificate", "normalizer"},
    skew_picked_by_the_table: {"public"},
    epsilon_picked_by_the_table: {"public"},
    nan_region: {"not-finite", "epsilon"},
    trajectory_released: {"dependent"},
    seed_reused: {"repeated"},
    theta_too_large_behind_draws: {"black-box"},
    rows_among_the_draws: {"black-box"},
    guarantee_understated: {"claim"},
    log_prob_shifted: {"normalizer"},
    log_prob_at_random: {"normalizer"},
    infinite_draws: {"draws"},
    certificate_of_another_function: {"certificate", "normalizer"},
    certificate_kept_in_conversion: {"certificate"},
    weights_that_are_not_the_law: {"draws"},
    batch_drawn_row_by_row: {"draws", "black-box"},
    separate_rows_at_the_price_of_one: {"epsilon"},
    batch_certified_as_a_row: {"certificate", "normalizer"},
    batch_networks_changed_after_certification: {"certificate"},
    batch_with_a_row_too_many: {"certificate", "normalizer"},
    batch_at_the_price_of_a_smaller_epsilon: {"epsilon", "claim"},
    shares_of_levels_from_the_table: {"base", "epsilon"},
    rare_combination_of_values: {"epsilon", "tilt"},
    columns_repeated_by_a_chain: {"dependent"},
}
