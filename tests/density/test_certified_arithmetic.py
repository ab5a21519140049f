"""A certificate holds in the arithmetic that it was proved in, and for the function that it was proved of."""

from __future__ import annotations

import copy
import pickle
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from densities import BASES, make_density, normal

from pyro_mbde import Ledger, MollifiedExpFamily, private_draws, release
from pyro_mbde.density.bounds import a_priori_guarantee
from pyro_mbde.density.scoring import Arithmetic


def test_a_conversion_drops_the_certificate_and_the_way_back_restores_it(calibrated: MollifiedExpFamily) -> None:
    wide = calibrated.to(torch.float64)
    assert wide.guarantee == a_priori_guarantee(calibrated.bounds)
    assert wide.certificate == calibrated.certificate
    assert "float64" in wide.certificate_lapse()
    assert wide.to(torch.float32).guarantee == calibrated.guarantee
    assert private_draws(wide, 2).dtype == torch.float64  # at its own guarantee


def test_an_a_priori_guarantee_survives_conversions() -> None:
    q = make_density(normal(2))
    assert q.to(torch.float64).guarantee == q.guarantee
    assert not q.to(torch.float64).certificate_lapse()


class TestFiles:
    def change(self, path: Path, **changes: object) -> None:
        content = torch.load(path)
        content["certified_on"].update(changes)
        torch.save(content, path)

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"pytorch": "2.4.0"}, "pytorch .* in place of 2.4.0"),
            ({"device": "cuda"}, "device cpu in place of cuda"),
            ({"processor": "NEON"}, "processor .* in place of NEON"),
            ({"results": "0" * 64}, "other results of the same arithmetic"),
        ],
    )
    def test_what_was_certified_elsewhere_has_the_a_priori_guarantee(
        self, calibrated: MollifiedExpFamily, tmp_path: Path, changes: dict[str, str], said: str
    ) -> None:
        path = tmp_path / "q.pt"
        calibrated.save(path)
        assert MollifiedExpFamily.load(path).guarantee == calibrated.guarantee
        self.change(path, **changes)
        with pytest.warns(UserWarning, match=f"does not hold here: {said}. One draw costs the a-priori epsilon"):
            loaded = MollifiedExpFamily.load(path)
        assert loaded.guarantee == a_priori_guarantee(calibrated.bounds)
        assert loaded.fingerprint == calibrated.fingerprint

    def test_values_of_other_networks_are_damage(self, calibrated: MollifiedExpFamily, tmp_path: Path) -> None:
        """They differ for some tables alone, and so must not decide what a draw costs."""
        path = tmp_path / "q.pt"
        calibrated.save(path)
        self.change(path, values="0" * 64)
        with pytest.raises(ValueError, match="undamaged"):
            MollifiedExpFamily.load(path)

    @pytest.mark.parametrize(
        "changes",
        [
            {"certificate": [0.0, 1e-9]},
            {"certificate": [0.0016, 0.0]},
            {"log_normalizer": [0.2, 0.0]},
            {"shrinkage": 0.9999},
            {"offset": 5.0},
        ],
    )
    def test_claims_that_were_edited_are_not_believed(
        self, calibrated: MollifiedExpFamily, tmp_path: Path, changes: dict[str, object]
    ) -> None:
        path = tmp_path / "q.pt"
        calibrated.save(path)
        torch.save(torch.load(path) | changes, path)
        with pytest.raises(ValueError, match="undamaged"):
            MollifiedExpFamily.load(path)

    def test_files_of_earlier_versions(self, calibrated: MollifiedExpFamily, tmp_path: Path) -> None:
        """They do not say what they were certified on; a-priori ones need not."""
        for q in (calibrated, make_density(normal(2))):
            path = tmp_path / "q.pt"
            q.save(path)
            content = torch.load(path)
            del content["certified_on"]
            torch.save(content | {"version": 3}, path)
            with pytest.warns(UserWarning, match="not noted") if q.certificate else nullcontext():
                loaded = MollifiedExpFamily.load(path)
            assert loaded.guarantee == a_priori_guarantee(q.bounds)
            assert loaded.fingerprint == q.fingerprint

    def test_a_record_of_another_form_is_damage(self, calibrated: MollifiedExpFamily, tmp_path: Path) -> None:
        path = tmp_path / "q.pt"
        calibrated.save(path)
        self.change(path, more="words")
        with pytest.raises(ValueError, match="undamaged"):
            MollifiedExpFamily.load(path)


class TestChangedInPlace:
    """Attack: the networks of a certified density are changed behind its back."""

    @pytest.fixture
    def changed(self, calibrated: MollifiedExpFamily) -> MollifiedExpFamily:
        q: MollifiedExpFamily = pickle.loads(pickle.dumps(calibrated))
        q.statistics.networks.weights[-1].mul_(1.01)  # type: ignore[union-attr, operator, index]
        return q

    def test_draws_are_refused(self, changed: MollifiedExpFamily) -> None:
        with pytest.raises(ValueError, match="q must be the function that its certificate was proved for"):
            private_draws(changed, 1)

    def test_releases_are_refused_before_anything_is_charged(self, changed: MollifiedExpFamily, ledger: Ledger) -> None:
        with pytest.raises(ValueError, match="q must be the function that its certificate was proved for"):
            release(changed, 1, ledger, "clinic")
        assert not ledger.charges("clinic")

    def test_an_unchanged_copy_is_not(self, calibrated: MollifiedExpFamily) -> None:
        copied = pickle.loads(pickle.dumps(calibrated))
        assert private_draws(copied, 1).shape == (1, 2)


@pytest.mark.parametrize("name", ["normal-2d", "categorical", "gamma", "bernoulli-3d"])
def test_arithmetic_is_the_same_for_the_same_density(name: str) -> None:
    q = make_density(BASES[name]())
    first, second = q._arithmetic(), copy.deepcopy(q)._arithmetic()
    assert first == second
    assert not first.difference(second)
    assert make_density(BASES[name]())._arithmetic().values != first.values


def test_difference_names_all_that_differs() -> None:
    here = Arithmetic("float32", "cpu", "AVX2", "2.13.0", "a", "x")
    other = here._replace(dtype="float64", pytorch="2.9.0", results="b")
    assert here.difference(other) == "dtype float32 in place of float64, pytorch 2.13.0 in place of 2.9.0"
    assert here.difference(here._replace(results="b")) == "other results of the same arithmetic"
    assert not here.difference(here._replace(values="y"))  # private: it must not decide what a draw costs
