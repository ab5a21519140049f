"""What a mixing report says of proposals that are rejected: by a density's tilt, or by steps that are too long."""

from __future__ import annotations

import math

import pytest
from chain_gallery import SHAPE, autoregressive, diverging_without_the_tilt, followed, rejected_by_the_tilt
from invariance import steep_density

from pyro_mbde import run_mcmc
from pyro_mbde.diagnostics.checks import mixing_report


@pytest.mark.parametrize(
    ("rate", "smooth_rate", "detail"),
    [
        (0.5, 0.81, "0.45 to 0.55 by chain; by the smooth energy 0.81"),
        (0.75, 0.81, "0.70 to 0.80 by chain"),
        (0.9, 0.5, "0.85 to 0.95 by chain"),
        (0.5, math.nan, "0.45 to 0.55 by chain"),
        (0.5, None, "0.45 to 0.55 by chain"),
    ],
)
def test_rejections_by_the_tilt_are_told_apart(rate: float, smooth_rate: float | None, detail: str) -> None:
    report = mixing_report(followed(rate, smooth_rate))
    assert report.passed  # it is not a fault
    assert [check.detail for check in report.checks if check.name == "acceptance rate"] == [detail]


def test_what_rejects_is_what_is_blamed() -> None:
    by_tilt, by_step = (
        " ".join(mixing_report(rejected_by_the_tilt()).failures),
        mixing_report(diverging_without_the_tilt()),
    )
    assert "Smaller steps do not help" in by_tilt
    assert "diverged" not in by_tilt
    assert [failure[:16] for failure in by_step.failures] == ["3 steps diverged"]
    older = followed(0.3, None, autoregressive(0.98, *SHAPE, 1)[..., 0])
    assert not any("tilt" in failure for failure in mixing_report(older).failures)


def test_chains_of_a_steep_density_say_what_rejects() -> None:
    """From the kernels themselves, not by hand."""
    for kernel, num_chains in (("lockstep_hmc", 16), ("nuts", 2)):
        chains = run_mcmc(steep_density(), kernel, 60, 60, num_chains=num_chains, seed=0, progress=False)
        failures = " ".join(mixing_report(chains).failures)
        assert "the density's tilt rejects proposals" in failures, kernel
        assert "diverged" not in failures
