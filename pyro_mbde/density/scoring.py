r"""The tilt as one function of a row: the same bits where a certificate is proved and where a row is drawn.

A certificate bounds :math:`\phi = \log E_{Q_0} e^f` of one function f. In floating point a network is a different
function for every way it is evaluated: float32 sums depend on how many rows are multiplied together, on autocast and
reduced-precision products, on the number of threads, on the dtype and on the processor. Weights that cancel make that
difference as large as the bounds allow. So scores that a certificate rests on, and the tilt by which rows are accepted,
are computed here and nowhere else, in chunks of one size, with the same settings.

Within a chunk a row can still be summed in another order than its neighbours: routines that multiply matrices treat
the last columns of a matrix apart, in blocks of rows. Sizes that are multiples of :data:`ALIGNED_SIZE` have no such
columns, and :func:`depends_on_place` tries it.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_mbde._torch_state import forked_generators, single_thread

#: Rows in a chunk, always: small enough that one row takes a millisecond, large enough to keep products busy.
CHUNK_ROWS = 512
#: Sizes of layers are rounded up to multiples of this where a certificate rests on them: the float32 numbers in the
#: widest vector registers.
ALIGNED_SIZE = 16
#: Places that a row is moved on by, to see whether its score changes: within a register, across registers, far.
_MOVES = (1, 2, 3, 5, 8, 16, 37)
#: Relative change of a score that rounding may cause: far above float32's last digit, far below what matters.
_ROUNDING = 1e-4


def score_rows(score: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """Applies a function of rows to each row, in chunks of :data:`CHUNK_ROWS` rows, the last one padded.

    Neither gradients nor the caller's settings enter: one thread, no autocast, full float32 precision, subnormal
    numbers kept. Torch's generators are not touched.

    Args:
        score: maps ``(CHUNK_ROWS, *event_shape)`` to ``(CHUNK_ROWS,)``, each row by itself.
        rows: shape ``(n, *event_shape)``.

    Returns:
        float64 tensor of shape ``(n,)``.
    """
    scores = torch.empty(len(rows), dtype=torch.float64, device=rows.device)
    with _fixed_settings(rows.device.type):
        for start in range(0, len(rows), CHUNK_ROWS):
            chunk = rows[start : start + CHUNK_ROWS]
            padding = chunk[:1].expand(CHUNK_ROWS - len(chunk), *chunk.shape[1:])
            # A copy: contiguous, aligned, and not shared.
            scores[start : start + CHUNK_ROWS] = score(torch.cat([chunk, padding]))[: len(chunk)]
    return scores


@contextmanager
def _fixed_settings(device_type: str) -> Iterator[None]:
    mkldnn: Any = torch.backends.mkldnn
    cuda: Any = torch.backends.cuda.matmul
    with forked_generators(), single_thread(), torch.no_grad(), torch.autocast(device_type, enabled=False):
        # oneDNN multiplies float32 matrices in bfloat16 where torch.set_float32_matmul_precision allows it.
        used_mkldnn, mkldnn.enabled = mkldnn.enabled, False
        flushed = _flushes_subnormals()
        torch.set_flush_denormal(False)
        allowed = cuda.allow_tf32 if device_type == "cuda" else False
        if allowed:
            cuda.allow_tf32 = False
        try:
            yield
        finally:
            mkldnn.enabled = used_mkldnn
            torch.set_flush_denormal(flushed)
            if allowed:
                cuda.allow_tf32 = True


def _flushes_subnormals() -> bool:
    return float(torch.tensor(1e-40, dtype=torch.float32, device="cpu") * 0.5) == 0.0


def depends_on_other_rows(score: Callable[[Tensor], Tensor], points: Tensor) -> bool:
    """Returns whether the score of a row, tried on 4 points or more, changes with the rows evaluated beside it."""
    half = points[: len(points) // 2]
    together = score_rows(score, points)[: len(half)]
    others = [
        score_rows(score, half.flip(0)).flip(0),
        torch.cat([score(half[index : index + 1]).double() for index in range(4)]),
    ]
    return any(
        bool(((other - together[: len(other)]).abs() > _ROUNDING * (1 + together[: len(other)].abs())).any())
        for other in others
    )


def depends_on_place(score: Callable[[Tensor], Tensor], rows: Tensor) -> bool:
    """Returns whether the score of a row changes, in its last bit or more, with its place in a chunk.

    The order of a sum does not depend on the numbers in it, so one score of unremarkable numbers stands for all of the
    same sizes. There must be :data:`CHUNK_ROWS` rows, not all the same.
    """
    scores = score_rows(score, rows)
    return any(not torch.equal(score_rows(score, rows.roll(move, 0)).roll(-move, 0), scores) for move in _MOVES)


class Arithmetic(NamedTuple):
    """What the values of a tilt depend on beside its weights, and what they are.

    Whether a certificate holds must not depend on the table, so only the public fields are compared: settings,
    and the results of a network of the same architecture with public weights.

    Attributes:
        dtype: of the density.
        device: type of its device.
        processor: name of the processor and its vector instructions, or the name of the GPU.
        pytorch: version of PyTorch.
        results: SHA-256 of what public weights give in the same layers.
        values: SHA-256 of the tilt's values and of what is claimed of it. Private; equal where the function is.
    """

    dtype: str
    device: str
    processor: str
    pytorch: str
    results: str
    values: str

    @classmethod
    def here(cls, dtype: torch.dtype, device: torch.device, results: Tensor, values: Tensor, claim: str) -> Arithmetic:
        """Returns the settings of this process, with hashes of what was computed in it."""
        processor = torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()
        settings = str(dtype).removeprefix("torch."), device.type, str(processor), str(torch.__version__)
        return cls(*settings, _digest(results), _digest(values, claim))

    def difference(self, other: Arithmetic) -> str:
        """Says in what the arithmetic differs, in public words; empty where it does not."""
        changed = [
            f"{name} {getattr(self, name)} in place of {getattr(other, name)}"
            for name in ("dtype", "device", "processor", "pytorch")
            if getattr(self, name) != getattr(other, name)
        ]
        if not changed and self.results != other.results:
            return "other results of the same arithmetic"
        return ", ".join(changed)


def _digest(values: Tensor, claim: str = "") -> str:
    return hashlib.sha256(values.cpu().numpy().astype("<f8").tobytes() + claim.encode()).hexdigest()


@cache
def _processor() -> str:
    capability: Any = torch.backends.cpu.get_cpu_capability
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # only Linux has it
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{(names or [platform.processor()])[0]} {capability()}".strip()
