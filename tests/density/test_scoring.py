"""One function, to the last bit, behind a certificate and behind the draws."""

from __future__ import annotations

import copy
import functools
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import pytest
import torch
from densities import normal, scale_calibration
from hostile import cancel_in_last_layer, cancelling
from torch import Tensor, nn

from pyro_mbde import BoundedClassifiers, MollifiedExpFamily, private_draws
from pyro_mbde.calibration.placement import Calibrator
from pyro_mbde.density.clipped_ratio import ClippedRatio
from pyro_mbde.density.scoring import CHUNK_ROWS, depends_on_other_rows, score_rows
from pyro_mbde.training.density_ratio import LogRatio

LINE = normal(1)


@contextmanager
def set_and_restored(get: Callable[[], object], put: Callable[[object], object], value: object) -> Iterator[None]:
    before = get()
    put(value)
    try:
        yield
    finally:
        put(before)


def low_precision() -> AbstractContextManager[None]:
    get, put = torch.get_float32_matmul_precision, torch.set_float32_matmul_precision
    return set_and_restored(get, put, "medium")  # type: ignore[arg-type]


def two_threads() -> AbstractContextManager[None]:
    return set_and_restored(torch.get_num_threads, torch.set_num_threads, 2)  # type: ignore[arg-type]


def flushed() -> AbstractContextManager[None]:
    return set_and_restored(lambda: False, torch.set_flush_denormal, True)  # type: ignore[arg-type]


SETTINGS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "as it is": nullcontext,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "low precision": low_precision,
    "two threads": two_threads,
    "flushed subnormals": flushed,
    "inference mode": torch.inference_mode,
    "gradients": torch.enable_grad,
}


@functools.cache
def cancelling_ratio() -> LogRatio:
    return LogRatio(LINE, cancelling(1.0), progress=False)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 511, 512, 513, 1500])
def test_the_same_bits_whatever_comes_beside_a_row(size: int, settings: str) -> None:
    """Attack: weights that cancel, by how many rows are asked for and under what settings of torch."""
    ratio = cancelling_ratio()
    rows = torch.linspace(-4, 4, 1500).unsqueeze(1)
    expected = score_rows(ratio.log_ratio, rows)
    with SETTINGS[settings]():
        assert torch.equal(score_rows(ratio.log_ratio, rows[:size].clone()), expected[:size])
        assert torch.equal(score_rows(ratio.log_ratio, rows.flip(0)[:size]), expected.flip(0)[:size])


#: Of inputs and hidden layers: sizes of which a product has columns left over beside whole vector registers, and one
#: that has none.
SIZES = [(1, (32, 7)), (8, (32, 7)), (8, (10,)), (8, (5,)), (8, (7, 13)), (3, (25, 25, 25)), (8, (64,))]


def spread_over_places(score: Callable[[Tensor], Tensor], rows: Tensor) -> float:
    """The largest difference between the scores of one row at several places of a chunk."""
    places = torch.stack([score_rows(score, rows.roll(move, 0)).roll(-move, 0) for move in range(17)])
    return float((places.max(0).values - places.min(0).values).max())


@pytest.mark.parametrize(
    ("num_features", "hidden_sizes", "num_frequencies"), [(*sizes, 7 * (i % 2)) for i, sizes in enumerate(SIZES)]
)
def test_a_row_has_one_score_at_every_place_of_a_chunk(
    num_features: int, hidden_sizes: tuple[int, ...], num_frequencies: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attack: few draws are scored at the first places of a chunk, those of a certificate at all of them."""
    scale_calibration(monkeypatch)
    networks = BoundedClassifiers(1, num_features, hidden_sizes=hidden_sizes, num_frequencies=num_frequencies)
    cancel_in_last_layer(networks)
    q = LogRatio(normal(num_features), networks, progress=False).mollify(0.5, skew=0.5)
    assert q.certificate is not None
    assert spread_over_places(q.tilt, torch.randn(CHUNK_ROWS, num_features)) == 0


def test_the_attack_by_place_works_on_layers_that_are_not_aligned() -> None:
    """Else the test above could not fail. The order of sums is the processor's: one of these must be torn apart."""
    spreads = []
    for num_features, hidden_sizes in SIZES:
        networks = BoundedClassifiers(1, num_features, hidden_sizes=hidden_sizes)
        cancel_in_last_layer(networks)
        q = MollifiedExpFamily(normal(num_features), networks, torch.tensor([0.25]), 0.0)
        spreads.append(spread_over_places(q.tilt, torch.randn(CHUNK_ROWS, num_features)))
    assert max(spreads) > 0.1


def test_statistics_that_depend_on_the_place_of_a_row_get_no_certificate() -> None:
    class ByPlace(nn.Module):
        """Within the rounding that a sum over a row may have."""

        def forward(self, value: Tensor) -> Tensor:
            return 0.1 * value[..., :1].tanh() + 1e-7 * (torch.arange(len(value)) % 4).unsqueeze(-1)

    with pytest.raises(ValueError, match=r"in the same order at every place, .*'ByPlace'. Make the sizes .* delta=0"):
        Calibrator(normal(2), ByPlace(), torch.ones(1), progress=False)
    MollifiedExpFamily(normal(2), ByPlace(), torch.ones(1), 0.0)  # a priori it does not matter


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_settings_are_put_back(dtype: torch.dtype) -> None:
    def settings() -> tuple[object, ...]:
        return (
            torch.get_num_threads(),
            torch.is_autocast_enabled("cpu"),
            torch.backends.mkldnn.enabled,
            float(torch.tensor(1e-40, dtype=torch.float32) * 0.5),
            torch.is_grad_enabled(),
        )

    default = set_and_restored(torch.get_default_dtype, torch.set_default_dtype, dtype)
    with default, two_threads(), flushed(), torch.autocast("cpu"):
        before, state = settings(), torch.get_rng_state()

        def fail(rows: Tensor) -> Tensor:
            torch.rand(3)
            raise ValueError

        with pytest.raises(ValueError):  # noqa: PT011  # whatever it raises
            score_rows(fail, torch.zeros(3, 1))
        assert settings() == before
        assert torch.equal(torch.get_rng_state(), state)


@functools.cache
def cancelling_densities() -> list[MollifiedExpFamily]:
    """Of two hostile networks."""
    return [LogRatio(LINE, cancelling(sign), progress=False).mollify(0.5, skew=0.5) for sign in (1.0, -1.0)]


def log_ratio_of_draws(how: Callable[[MollifiedExpFamily, Tensor], Tensor]) -> tuple[float, float]:
    """Claimed and largest log-ratio of the laws of two hostile networks, if draws are accepted by a tilt as given."""
    rows = torch.linspace(-5, 5, 8001).unsqueeze(1)
    weights = LINE.log_prob(rows).double().softmax(0)
    log_ratios, claimed = [], 0.0
    for q in cancelling_densities():
        tilts = how(q, rows)
        log_ratios.append(tilts - math.log(float((weights * tilts.exp()).sum())))
        claimed = max(claimed, q.guarantee.epsilon)
    return claimed, float((log_ratios[0] - log_ratios[1]).abs().max())


def test_the_attack_works_on_a_tilt_that_is_evaluated_in_other_ways() -> None:
    """Else the tests here could not fail. The order of sums is the processor's: one of these must break the claim."""
    ways: list[Callable[[MollifiedExpFamily, Tensor], Tensor]] = [
        lambda q, rows: torch.cat([q.tilt(rows[index : index + 1]) for index in range(len(rows))]),
        lambda q, rows: q.to(torch.float64).tilt(rows),
        under_autocast,
    ]
    assert max(log_ratio_of_draws(how)[1] for how in ways) > 0.6


def under_autocast(q: MollifiedExpFamily, rows: Tensor) -> Tensor:
    with torch.autocast("cpu"):
        return q.tilt(rows)


def test_draws_follow_what_was_certified() -> None:
    claimed, largest = log_ratio_of_draws(lambda q, rows: score_rows(q.tilt, rows))
    assert largest <= claimed <= 0.5


class Spy(nn.Module):
    """Passes on what a network answers, and notes how it was asked."""

    def __init__(self, inner: nn.Module, seen: set[tuple[object, ...]]) -> None:
        super().__init__()
        self.inner, self.seen = inner, seen

    def forward(self, value: Tensor) -> Tensor:
        self.seen.add((tuple(value.shape), torch.get_num_threads(), torch.is_autocast_enabled("cpu")))
        answer: Tensor = self.inner(value)
        return answer


@pytest.mark.parametrize("count", [1, 2, 700])
@pytest.mark.parametrize("constant_time", [False, True])
def test_all_draws_are_accepted_in_chunks_of_one_shape(
    calibrated: MollifiedExpFamily, count: int, constant_time: bool
) -> None:
    q, seen = copy.deepcopy(calibrated), set[tuple[object, ...]]()
    q._tilt.statistics = Spy(q.statistics, seen)
    with torch.autocast("cpu"), two_threads():
        private_draws(q, count, constant_time=constant_time, progress=False)
        q.sample((count,))
    assert seen == {((CHUNK_ROWS, 2), 1, False)}


class OverTheBatch(nn.Module):
    """Statistics that look at other rows."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, value: Tensor) -> Tensor:
        column = value[..., :1]
        if self.kind == "mean":
            return column - column.mean(0, keepdim=True)
        if self.kind == "size":
            return column * 0 + len(column) / 1000
        if self.kind == "order":
            return column.sort(0).values
        return column.sin()


@pytest.mark.parametrize("kind", ["mean", "size", "order"])
def test_statistics_across_rows_are_refused(kind: str) -> None:
    with pytest.raises(ValueError, match="statistics must not look across rows, got OverTheBatch"):
        MollifiedExpFamily(normal(2), OverTheBatch(kind), torch.tensor([0.5]), 0.0)


@pytest.mark.parametrize("wrap", [lambda networks: networks, ClippedRatio])
def test_a_subclass_is_tried_as_any_other_module(wrap: Callable[[BoundedClassifiers], nn.Module]) -> None:
    """Attack: a class of this library's in all but one method."""

    class Padded(BoundedClassifiers):
        def logits(self, value: Tensor) -> Tensor:
            first = value[..., :1]
            padded = len(first) == 1 or bool((first == first[0]).sum() > 1)  # as a chunk with a few rows is
            return 50.0 * (first - 1).sign() if padded else torch.zeros_like(first)

    with pytest.raises(ValueError, match="statistics must not look across rows, got"):
        MollifiedExpFamily(LINE, wrap(Padded(1, 1)), torch.tensor([0.5]), 0.0)


def test_statistics_of_single_rows_are_not() -> None:
    MollifiedExpFamily(normal(2), OverTheBatch("none"), torch.tensor([0.5]), 0.0)
    normalised = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 1))
    MollifiedExpFamily(normal(2), normalised, torch.tensor([0.5]), 0.0)
    assert not depends_on_other_rows(lambda rows: rows.sum(-1), torch.randn(8, 2))


def test_threads_take_turns_and_put_settings_back() -> None:
    """Attack: scores in one thread while another sets the number of threads and puts it back."""
    ratio = LogRatio(LINE, cancelling(1.0), progress=False)
    rows = torch.linspace(-4, 4, 2000).unsqueeze(1)
    expected = score_rows(ratio.log_ratio, rows)
    differing: list[bool] = []

    def work() -> None:
        torch.set_num_threads(2)
        differing.extend(not torch.equal(score_rows(ratio.log_ratio, rows), expected) for _ in range(20))
        differing.append(torch.get_num_threads() != 2)

    before = torch.get_num_threads()
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.set_num_threads(before)
    assert not any(differing)
    assert len(differing) == 84


def test_networks_of_a_ratio_are_summed_alike_in_ratio_and_density() -> None:
    """Attack: a huge ratio, in which a shift that is added and taken off again would be rounded away."""
    networks = BoundedClassifiers(2, 1, hidden_sizes=(4,))
    with torch.no_grad():
        networks.weights[-1].mul_(1e18)
        networks.biases[-1].fill_(1e17)
    ratio = LogRatio(LINE, networks, progress=False)
    q = ratio.mollify(1.0, skew=0.1)
    rows = LINE.sample((20_000,))
    score = score_rows(ratio.log_ratio, rows).clamp(-1024 * math.log(2), 1024 * math.log(2))
    expected = q.shrinkage * (score - q.offset).clamp(q.bounds.low, q.bounds.high)
    assert torch.equal(score_rows(q.tilt, rows), expected)
