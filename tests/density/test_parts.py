"""Densities pickled, copied, in files and in other processes; what names them."""

from __future__ import annotations

import copy
import math
import multiprocessing
import pickle
import re
from pathlib import Path
from typing import BinaryIO

import pyro.distributions as dist
import pytest
import torch
from densities import BASES, make_density, normal
from torch import Tensor, nn

from pyro_mbde import BoundedClassifiers, Bounds, MollifiedExpFamily, run_mcmc
from pyro_mbde.density.bounds import Certificate


def _log_prob_elsewhere(density: MollifiedExpFamily, value: torch.Tensor) -> torch.Tensor:
    torch.set_num_threads(1)
    return density.log_prob(value)


class TestCopies:
    def test_pickle_and_deepcopy(self, density: MollifiedExpFamily) -> None:
        value = density.sample((9,))
        log_prob = density.log_prob(value)
        assert torch.equal(pickle.loads(pickle.dumps(density)).log_prob(value), log_prob)
        assert torch.equal(copy.deepcopy(density).log_prob(value), log_prob)

    def test_after_nuts_and_in_a_spawned_process(self, plane: MollifiedExpFamily) -> None:
        value = plane.sample((9,))
        log_prob = plane.log_prob(value)
        run_mcmc(plane, "nuts", num_samples=5, warmup_steps=5, num_chains=1, progress=False)
        assert torch.equal(pickle.loads(pickle.dumps(plane)).log_prob(value), log_prob)
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            elsewhere = pool.apply(_log_prob_elsewhere, (plane, value))
        assert torch.equal(elsewhere, log_prob)

    def test_save_and_load(self, density: MollifiedExpFamily, tmp_path: Path) -> None:
        path = tmp_path / "density.pt"
        density = density.expand([2])
        density.save(path)
        loaded = MollifiedExpFamily.load(path)
        value = density.sample((9,))
        assert torch.equal(loaded.log_prob(value), density.log_prob(value))
        assert loaded.guarantee == density.guarantee
        assert loaded.log_normalizer == density.log_normalizer
        assert loaded.batch_shape == (2,)
        torch.load(path)  # the safe defaults accept it

    def test_loading_leaves_the_generator_alone(self, plane: MollifiedExpFamily, tmp_path: Path) -> None:
        plane.save(tmp_path / "density.pt")
        state = torch.get_rng_state()
        MollifiedExpFamily.load(tmp_path / "density.pt")
        copy.deepcopy(plane).to(torch.float64)
        assert torch.equal(torch.get_rng_state(), state)

    def test_file_is_for_its_owner_alone(self, plane: MollifiedExpFamily, tmp_path: Path) -> None:
        plane.save(tmp_path / "density.pt")
        assert (tmp_path / "density.pt").stat().st_mode & 0o077 == 0

    def test_failed_save_keeps_the_old_file(
        self, plane: MollifiedExpFamily, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "density.pt"
        plane.save(path)
        before = path.read_bytes()

        def fail(content: object, file: BinaryIO) -> None:
            file.write(b"half")
            raise OSError("No space left on device")

        monkeypatch.setattr(torch, "save", fail)
        with pytest.raises(OSError, match="No space"):
            plane.save(path)
        assert path.read_bytes() == before
        assert [item.name for item in tmp_path.iterdir()] == ["density.pt"]

    def test_own_modules_cannot_be_saved(self, tmp_path: Path) -> None:
        density = MollifiedExpFamily(normal(2), nn.Linear(2, 1), torch.tensor([0.1]), 0.0)
        with pytest.raises(TypeError, match="pickle the density"):
            density.save(tmp_path / "density.pt")

    def test_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            MollifiedExpFamily.load(tmp_path / "none.pt")

    def test_damaged_files_give_one_error(self, plane: MollifiedExpFamily, tmp_path: Path) -> None:
        path = tmp_path / "density.pt"
        plane.save(path)
        whole = path.read_bytes()
        damaged = [b"", b"not a file of ours", whole[: len(whole) // 2], whole[100:], bytes(1000)]
        torch.save({"format": "other"}, path)
        damaged.append(path.read_bytes())
        torch.save([1, 2], path)
        damaged.append(path.read_bytes())
        damaged.append(pickle.dumps({"format": "pyro_mbde.MollifiedExpFamily"}))
        for content in damaged:
            path.write_bytes(content)
            with pytest.raises(ValueError, match="path must name an undamaged file"):
                MollifiedExpFamily.load(path)

    @pytest.mark.parametrize(
        "change",
        [
            {"natural_params": torch.tensor([[1.0]])},
            {"base": {"distribution": "pyro.sample", "arguments": {}}},
            {"base": {"distribution": "os.system", "arguments": {}}},
            {"base": {"distribution": "pyro.Normal", "arguments": {"nothing": 1.0}}},
            {"base": 3},
            {"batch_shape": [-1]},
            {"bounds": [1.0, 2.0]},
            {"bounds": [float("nan"), 2.0]},
            {"log_normalizer": [float("nan"), 0.0]},
            {"statistics": {"config": {}, "state": {}}},
        ],
    )
    def test_changed_content(self, plane: MollifiedExpFamily, tmp_path: Path, change: dict[str, object]) -> None:
        path = tmp_path / "density.pt"
        plane.save(path)
        torch.save({**torch.load(path), **change}, path)
        with pytest.raises(ValueError, match="path must name an undamaged file"):
            MollifiedExpFamily.load(path)

    def test_later_version(self, plane: MollifiedExpFamily, tmp_path: Path) -> None:
        path = tmp_path / "density.pt"
        plane.save(path)
        torch.save({**torch.load(path), "version": 99}, path)
        with pytest.raises(ValueError, match="version must be 3 or 4, got file version=99. Update pyro_mbde"):
            MollifiedExpFamily.load(path)


@pytest.mark.parametrize("name", ["normal-2d", "uniform-box", "multivariate-normal", "mixture", "transformed"])
def test_what_is_made_in_inference_mode_can_be_differentiated(name: str, tmp_path: Path) -> None:
    original = make_density(BASES[name](), link="tanh")
    original.save(tmp_path / "density.pt")
    with torch.inference_mode():
        made = [
            original.to(torch.float64),
            MollifiedExpFamily.load(tmp_path / "density.pt"),
            make_density(BASES[name](), link="tanh"),
            original.expand([3]),
        ]
    for density in made:
        value = original.sample((3,)).to(density.dtype).requires_grad_(True)
        density.log_prob(value).sum().backward()
        assert value.grad is not None
        assert bool(torch.isfinite(value.grad).all())


@pytest.mark.parametrize("name", ["normal-2d", "uniform-box", "mixture", "categorical", "log-normal"])
def test_a_fingerprint_names_the_density(name: str, tmp_path: Path) -> None:
    density = make_density(BASES[name]())
    density.save(tmp_path / "q")
    assert re.fullmatch("[0-9a-f]{64}", density.fingerprint)
    assert density.fingerprint == MollifiedExpFamily.load(tmp_path / "q").fingerprint
    assert density.fingerprint == density.expand([3]).fingerprint == copy.deepcopy(density).fingerprint
    others = [make_density(BASES[name]()), make_density(BASES[name](), epsilon=2.0), density.to(torch.float64)]
    assert density.fingerprint not in {other.fingerprint for other in others}
    assert len({other.fingerprint for other in others}) == 3


def test_a_fingerprint_follows_every_bit() -> None:
    base = normal(2)
    network = BoundedClassifiers(1, 2)
    theta, certificate = torch.tensor([0.1], dtype=torch.float64), Certificate(0.001, 1e-9)

    def fingerprint(**changes: object) -> str:
        arguments = {"offset": 0.1, "shrinkage": 0.5, "bounds": Bounds(-0.3, 0.5), "certificate": certificate}
        arguments |= changes
        density = MollifiedExpFamily(base, network, theta, 0.01, **arguments)
        return density._parts()._replace(salt="0" * 32).fingerprint()

    seen = {
        fingerprint(),
        fingerprint(offset=math.nextafter(0.1, 1)),
        fingerprint(shrinkage=0.6),
        fingerprint(bounds=Bounds(-0.3, 0.6)),
        fingerprint(certificate=None),
        fingerprint(certificate=Certificate(0.001, 1e-8)),
    }
    with torch.no_grad():
        network.weights[0].view(torch.int32).view(-1)[0].bitwise_xor_(1)
    seen.add(fingerprint())
    base = dist.Normal(torch.tensor([0.0, 1e-30]), torch.ones(2)).to_event(1)
    seen.add(fingerprint())
    assert len(seen) == 8
    assert fingerprint() == fingerprint()


def test_a_fingerprint_cannot_be_guessed() -> None:
    """Two densities that are equal bit for bit have fingerprints of their own, made from 128 random bits."""
    network = BoundedClassifiers(1, 2)
    first, second = (MollifiedExpFamily(normal(2), network, torch.tensor([0.1]), 0.01) for _ in range(2))
    assert torch.equal(first.log_prob(torch.zeros(2)), second.log_prob(torch.zeros(2)))
    assert first.fingerprint != second.fingerprint
    assert len(first._parts().salt) == 32


def test_no_fingerprint_of_what_cannot_be_written_down() -> None:
    class Own(nn.Module):
        def forward(self, value: Tensor) -> Tensor:
            return value[..., :1]

    with pytest.raises(TypeError, match="statistics must be of this library"):
        MollifiedExpFamily(normal(2), Own(), torch.tensor([0.1]), 0.0).fingerprint  # noqa: B018
