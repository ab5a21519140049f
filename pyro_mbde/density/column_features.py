"""What networks see of a row of columns."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pyro_mbde.density.marginals import Marginal, MarginalTable

#: Levels, and values of whole numbers, that get an indicator each, at most; more levels share codes of random signs.
_MAX_INDICATORS, _MAX_INDICATED_NUMBERS, _CODE_LENGTH = 32, 16, 16
#: Deviation of the uniform distribution on [0, 1].
_UNIFORM_DEVIATION = 1 / math.sqrt(12)


class ColumnFeatures:
    r"""Maps rows to what networks see of them, by public numbers alone.

    A number gives its place in its public distribution, as a normal score, or as the standardised value where that
    distribution is uniform; it gives the middle of the place where it has a mass. Levels give indicators, or, where
    there are many, a fixed code of random signs. Dates give sines and cosines of their periods, missing values an
    indicator.

    Args:
        marginals: of the d columns.
        table: the same, evaluated together.
    """

    def __init__(self, marginals: Sequence[Marginal], table: MarginalTable) -> None:
        self._table = table
        device = marginals[0].edges.device
        scored = [index for index, one in enumerate(marginals) if one.kind != "category"]
        self._scored = torch.tensor(scored, dtype=torch.long, device=device)
        self._flat = torch.tensor([marginals[index].is_flat for index in scored], dtype=torch.bool, device=device)
        indicated: list[tuple[int, float]] = []
        periodic: list[tuple[int, float]] = []
        self._codes: list[tuple[int, Tensor]] = []
        for index, one in enumerate(marginals):
            count = round(one.high - one.low) + 1
            if one.missing_share:
                indicated.append((index, one.missing_value))
            most = _MAX_INDICATED_NUMBERS if one.kind == "integer" else _MAX_INDICATORS
            if one.is_discrete and count <= most:
                first = 1 if count == 2 else 0  # of two, one tells both apart
                indicated += [(index, one.low + code) for code in range(first, count)]
            elif one.kind == "category":
                # Numbers in binary, no two the same: bits are signs.
                numbers = torch.randperm(2**_CODE_LENGTH, generator=torch.Generator().manual_seed(index))[:count]
                bits = numbers.unsqueeze(1) >> torch.arange(_CODE_LENGTH) & 1
                self._codes.append((index, (2 * bits - 1).to(device, torch.float64)))
            periodic += [(index, period) for period in one.periods]
        self._indicated, self._indicated_values = _split(indicated, device)
        self._periodic, self._periods = _split(periodic, device)
        self.num_features = (
            len(scored) + len(indicated) + 2 * len(periodic) + sum(codes.shape[1] for _, codes in self._codes)
        )

    def __call__(self, value: Tensor) -> Tensor:
        """Returns the features of rows of shape ``(..., d)``, float64 of shape ``(..., num_features)``."""
        wide = value.double()
        parts = []
        if len(self._scored):
            low, high = self._table.cdf_intervals(value)
            middle = ((low + high) / 2)[..., self._scored]
            middle = torch.where(self._table.is_missing(value)[..., self._scored], 0.5, middle)
            uniform = (middle - 0.5) / _UNIFORM_DEVIATION
            edge = 1e-9  # of which the normal score is 6
            normal = torch.special.ndtri(middle.clamp(edge, 1 - edge))
            parts.append(torch.where(self._flat, uniform, normal))
        if len(self._indicated):
            parts.append((wide[..., self._indicated] == self._indicated_values).double())
        if len(self._periodic):
            angles = 2 * math.pi * wide[..., self._periodic] / self._periods
            parts += [angles.sin(), angles.cos()]
        for index, codes in self._codes:
            code = wide[..., index]
            known = (code >= 0) & (code < len(codes))
            parts.append(codes[torch.where(known, code, 0.0).long()] * known.unsqueeze(-1))
        return torch.cat(parts, -1)


def _split(pairs: list[tuple[int, float]], device: torch.device) -> tuple[Tensor, Tensor]:
    indices = torch.tensor([index for index, _ in pairs], dtype=torch.long, device=device)
    return indices, torch.tensor([value for _, value in pairs], dtype=torch.float64, device=device)
