"""A new proof where the old one does not hold, and none of what is not true."""

from __future__ import annotations

import math

import pyro.distributions as dist
import pytest
import torch
from densities import make_density, normal, scale_calibration
from hostile import cancelling

from pyro_mbde import BoundedClassifiers, MollifiedExpFamily, recertify
from pyro_mbde.calibration import placement as calibration
from pyro_mbde.density.bounds import Bounds, Certificate
from pyro_mbde.training.density_ratio import LogRatio

LINE = normal(1)


def test_a_new_certificate(calibrated: MollifiedExpFamily) -> None:
    wide = recertify(calibrated.to(torch.float64), progress=False)
    assert wide.guarantee == calibrated.guarantee
    assert wide.dtype == torch.float64
    assert not wide.certificate_lapse()
    assert wide.fingerprint != calibrated.to(torch.float64).fingerprint  # its delta counts for itself
    with pytest.raises(ValueError, match="q must have a certificate"):
        recertify(make_density(normal(2)))
    with pytest.raises(TypeError, match="q must be a MollifiedExpFamily"):
        recertify(normal(2))  # type: ignore[arg-type]


def test_no_new_certificate_for_a_tilt_that_is_shrunk_by_too_little() -> None:
    """Attack: what is shrunk as far as the bounds ask for needs no proof; what is shrunk by less does."""
    score = torch.tensor([0.5 / math.log(2)], dtype=torch.float64)
    for shrinkage in (0.9999, 0.51):
        q = MollifiedExpFamily(
            LINE,
            BoundedClassifiers(1, 1),
            score,
            0.0,
            bounds=Bounds(-0.5, 0.5),
            shrinkage=shrinkage,
            certificate=Certificate(1e-3, 1e-9),
        )
        with pytest.raises(ValueError, match="No proof was found"):
            recertify(q, progress=False)
    certain = MollifiedExpFamily(
        LINE,
        BoundedClassifiers(1, 1),
        score,
        0.0,
        bounds=Bounds(-0.5, 0.5),
        shrinkage=0.5,
        certificate=Certificate(1e-3, 1e-9),
    )
    assert recertify(certain, progress=False).guarantee == certain.guarantee


@pytest.mark.parametrize("certificate", [Certificate(0.0, 1e-9), Certificate(1e-3, 0.0)])
def test_no_new_certificate_where_draws_can_prove_none(certificate: Certificate) -> None:
    q = MollifiedExpFamily(
        LINE, BoundedClassifiers(1, 1), torch.ones(1), 0.0, bounds=Bounds(-0.5, 0.5), certificate=certificate
    )
    with pytest.raises(ValueError, match="q must have a certificate that draws can prove"):
        recertify(q)


def test_no_new_certificate_for_another_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attack: what float32 cancels float64 keeps, so that the certificate does not carry over."""
    scale_calibration(monkeypatch)
    monkeypatch.setattr(calibration, "_MAX_FRESH_DRAWS", 2**18)
    for sign in (1.0, -1.0):
        networks = cancelling(sign)
        with torch.no_grad():  # what survives one way or the other in float32, together
            networks.weights[1][0, 50:57] *= 3
        q = LogRatio(LINE, networks, progress=False).mollify(0.5, skew=0.5)
        wide = q.to(torch.float64)
        wide._tilt.offset += 0.2
        assert wide.certificate_lapse()
        with pytest.raises(ValueError, match="No proof was found"):
            recertify(wide, progress=False)


@pytest.mark.parametrize("validate_args", [True, False])
def test_a_new_certificate_keeps_the_checks_of_values_on_or_off(validate_args: bool) -> None:
    q = LogRatio(dist.Categorical(torch.ones(5)), BoundedClassifiers(1, 1), progress=False).mollify(1.0, delta=0.0)
    q._validate_args = validate_args
    assert q.certificate is not None
    assert recertify(q, progress=False)._validate_args is validate_args
