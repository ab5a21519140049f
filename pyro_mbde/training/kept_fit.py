"""A fit that processes agree on, and that is kept on the way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.distributions import Distribution

from pyro_mbde._checks import listed
from pyro_mbde._torch_state import generator_states, set_generator_states
from pyro_mbde.density.base import PreparedBase, describe_base
from pyro_mbde.ranks import Ranks
from pyro_mbde.serialization import UnknownDistributionError, canonical_digest
from pyro_mbde.training.checkpoint import Checkpoint
from pyro_mbde.training.fallback import ReadingError, warn_owner
from pyro_mbde.training.row_source import hash_of_rows


class KeptFit:
    """One fit, its checkpoint and the processes it runs in. Every method is to be called by all of them.

    Args:
        settings: of the fit, as text by name; the same in all processes.
        ranks: the processes.
        checkpoint: what the first process reads and writes; ``None`` to keep nothing.

    Attributes:
        resumed: the state that the fit goes on from, or None.
    """

    def __init__(self, settings: Mapping[str, str], ranks: Ranks, checkpoint: Checkpoint | None) -> None:
        self._settings, self._ranks, self._checkpoint = dict(settings), ranks, checkpoint
        self._table = ""
        self._start = generator_states()
        self._state: dict[str, Any] | None = None
        self._num_calibrations = 0
        self.resumed: dict[str, Any] | None = None
        every = ranks.gather(self._settings)
        if differing := [name for name in self._settings if any(one.get(name) != every[0][name] for one in every)]:
            raise ValueError(
                f"The {ranks.size} processes were started with different values of {listed(differing)}. Start all of "
                f"them with the same command."
            )

    def take_up(self) -> None:
        """Reads the checkpoint, if there is one, and puts torch's generators where they were as that fit began.

        Raises:
            OSError: it cannot be read.
            ValueError: it is damaged, of another version, or of a fit with other settings.
        """
        found: tuple[str, dict[str, Any]] | None = None
        error: Exception | None = None
        if self._ranks.is_first and self._checkpoint is not None:
            try:
                if self._checkpoint.exists():
                    found = self._checkpoint.read(self._settings)
                else:
                    warn_owner(
                        f"There is no checkpoint {str(self._checkpoint.path)!r}: the fit starts from the beginning."
                    )
            except (OSError, ValueError) as caught:
                error = caught
        found, error = self._ranks.broadcast((found, error))
        if error is not None:
            raise error
        if found is not None:
            self._table, self.resumed = found
            self._num_calibrations = int(self.resumed.get("num_calibrations", 0))
            start = tuple(self.resumed["start"])
            set_generator_states(start if len(start) == len(self._start) else start[:1])
            self._start = generator_states()

    def check_table(self, fingerprint: str) -> None:
        """Raises ValueError unless all processes have the same table, and it is that of the checkpoint."""
        if len(set(self._ranks.gather(fingerprint))) > 1:
            raise ValueError(
                f"The {self._ranks.size} processes were given different tables, or files that were copied at different "
                f"times. Give all of them the same files."
            )
        if self.resumed is not None and self._checkpoint is not None:
            self._checkpoint.check_table(self._table, fingerprint)
        self._table = fingerprint

    def keep(self, state: dict[str, Any]) -> None:
        """Writes a checkpoint; for the first process alone.

        Raises:
            ReadingError: it cannot be written; the cause says why.
        """
        if self._checkpoint is None:
            return
        self._state = {**state, "start": list(self._start), "num_calibrations": self._num_calibrations}
        try:
            self._checkpoint.write(self._settings, self._table, self._state)
        except (OSError, RuntimeError) as error:  # torch has its own for a full disk; neither depends on the rows
            cause = OSError(f"The checkpoint {str(self._checkpoint.path)!r} cannot be written: {error}")
            raise ReadingError(str(cause)) from cause

    def begin_calibration(self) -> float:
        r"""Returns the share of delta that certificates may use from here on; notes in the checkpoint that they begin.

        One that was cut off may have been about to fail, and the next would not be independent of that. So the i-th
        calibration of a fit that is kept has :math:`2^{-i}` of delta: all of them together have no more than delta.
        Proof: docs/proofs.md, *Certificates of a fit that was interrupted*.
        """
        if self._checkpoint is None:
            return 1.0
        self._num_calibrations += 1
        if self._ranks.is_first and self._state is not None:
            try:
                self.keep(self._state)
            except ReadingError as error:
                raise (error.__cause__ or error) from None
        return 2.0**-self._num_calibrations


def digest_of_base(base: Distribution | PreparedBase) -> str:
    """Returns a hash of a base: of its description, or of fixed draws where it has none."""
    prepared = PreparedBase.of(base)
    try:
        return canonical_digest(describe_base(prepared.distribution, prepared.draws))
    except UnknownDistributionError:
        return f"{type(prepared.distribution).__name__}:{hash_of_rows(prepared.draws)}"
