"""Progress of an audit."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from tqdm import tqdm

#: Of a pair: two tables to fit and two densities to check, a search, a comparison of draws.
_STEPS_A_PAIR = 6


class AuditProgress:
    """A bar on standard error that counts steps and says which one is under way."""

    def __init__(self, num_pairs: int, *, show: bool) -> None:
        # The bar iterates over nothing.
        self._bar: tqdm[Any] = tqdm(total=num_pairs * _STEPS_A_PAIR, desc="audit", unit="step", disable=not show)
        self._num_pairs, self._under_way = 0, False

    def begin(self, what: str) -> None:
        """Ends the step under way and says what the next one does, as ``fitting 'halves', first table``."""
        self._bar.update(int(self._under_way))
        self._under_way = True
        self._bar.set_postfix_str(what)

    def end_pair(self) -> None:
        """Ends all steps of a pair: fewer were needed where a table was fitted before or was refused."""
        self._under_way, self._num_pairs = False, self._num_pairs + 1
        self._bar.update(self._num_pairs * _STEPS_A_PAIR - self._bar.n)

    def __enter__(self) -> AuditProgress:
        """Returns itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes the bar."""
        self._bar.close()
