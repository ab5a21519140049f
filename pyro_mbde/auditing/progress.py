"""Progress of an audit."""

from __future__ import annotations

from tqdm import tqdm

#: Of a pair: two tables to fit and two densities to check, a search, a comparison of draws.
_STEPS_A_PAIR = 6


class AuditProgress(tqdm):  # type: ignore[type-arg]  # of nothing that is iterated over
    """A bar on standard error that counts steps and says which one is under way."""

    def __init__(self, num_pairs: int, *, show: bool) -> None:
        super().__init__(total=num_pairs * _STEPS_A_PAIR, desc="audit", unit="step", disable=not show)
        self._num_pairs, self._under_way = 0, False

    def begin(self, what: str) -> None:
        """Ends the step under way and says what the next one does, as ``fitting 'halves', first table``."""
        self.update(int(self._under_way))
        self._under_way = True
        self.set_postfix_str(what)

    def end_pair(self) -> None:
        """Ends all steps of a pair: fewer were needed where a table was fitted before or was refused."""
        self._under_way, self._num_pairs = False, self._num_pairs + 1
        self.update(self._num_pairs * _STEPS_A_PAIR - self.n)
