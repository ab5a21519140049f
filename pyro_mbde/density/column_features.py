"""What networks see of a row of columns."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pyro_mbde.density.marginals import Marginal, MarginalTable
from pyro_mbde.density.rectangles import normal_scores

#: Levels, and values of whole numbers, that get an indicator each, at most; more levels share codes of random signs.
_MAX_INDICATORS, _MAX_INDICATED_NUMBERS, _CODE_LENGTH = 32, 16, 16
#: Values of a column whose scores are looked up, at most.
_MAX_LISTED = 2**16
#: Places closer to 0 or 1 than this give the normal score of this, which is 6.
_LOWEST_PLACE = 1e-9
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
    """

    def __init__(self, marginals: Sequence[Marginal]) -> None:
        device = marginals[0].edges.device
        scored = [(index, one) for index, one in enumerate(marginals) if one.kind != "category"]
        # Scores of points are looked up, where these are few.
        listed = [(index, one) for index, one in scored if (one.num_values or math.inf) <= _MAX_LISTED]
        computed = [(index, one) for index, one in scored if (one.num_values or math.inf) > _MAX_LISTED]
        self._scores: list[_ListedScores | _ComputedScores] = [_ListedScores(listed)] if listed else []
        self._scores += [_ComputedScores(computed)] if computed else []
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
        parts = [scores(wide) for scores in self._scores]
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


class _ListedScores:
    """Scores of whole numbers and ordered levels, one for each value, looked up."""

    def __init__(self, columns: Sequence[tuple[int, Marginal]]) -> None:
        device = columns[0][1].edges.device
        self._columns = torch.tensor([index for index, _ in columns], dtype=torch.long, device=device)
        tables = []
        for _, one in columns:
            values = torch.arange(one.low, one.high + 1, dtype=torch.float64, device=device).unsqueeze(-1)
            tables.append(_place_scores(MarginalTable([one]), values, torch.tensor([one.is_flat], device=device)))
        sizes = torch.tensor([len(table) for table in tables], device=device)
        self._first, self._last = sizes.cumsum(0) - sizes, sizes - 1
        self._low = torch.tensor([one.low for _, one in columns], dtype=torch.float64, device=device)
        # A missing value is below the range; the table's last entry stands for it.
        self._table = torch.cat([*(table.squeeze(-1) for table in tables), tables[0].new_zeros(1)])

    def __call__(self, value: Tensor) -> Tensor:
        place = (value[..., self._columns] - self._low).long()
        index = torch.where(place < 0, len(self._table) - 1, self._first + torch.minimum(place, self._last))
        return self._table[index]


class _ComputedScores:
    """Scores of real numbers, and of whole numbers on a wide range."""

    def __init__(self, columns: Sequence[tuple[int, Marginal]]) -> None:
        device = columns[0][1].edges.device
        self._columns = torch.tensor([index for index, _ in columns], dtype=torch.long, device=device)
        self._flat = torch.tensor([one.is_flat for _, one in columns], dtype=torch.bool, device=device)
        self._marginals = MarginalTable([one for _, one in columns])

    def __call__(self, value: Tensor) -> Tensor:
        return _place_scores(self._marginals, value[..., self._columns], self._flat)


def _place_scores(table: MarginalTable, value: Tensor, flat: Tensor) -> Tensor:
    """Normal scores of the middle of each value's place, or standardised places; 0 for a missing value."""
    low, high = table.cdf_intervals(value)
    middle = torch.where(table.is_missing(value), 0.5, (low + high) / 2)
    normal = normal_scores(middle.clamp(_LOWEST_PLACE, 1 - _LOWEST_PLACE))
    return torch.where(flat, (middle - 0.5) / _UNIFORM_DEVIATION, normal)


def _split(pairs: list[tuple[int, float]], device: torch.device) -> tuple[Tensor, Tensor]:
    indices = torch.tensor([index for index, _ in pairs], dtype=torch.long, device=device)
    return indices, torch.tensor([value for _, value in pairs], dtype=torch.float64, device=device)
