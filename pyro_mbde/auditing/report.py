"""What an audit found, as values."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

#: A fault contradicts the claim, or what the claim rests on; a note says what could not be checked, or is worth a look.
FAULT, NOTE = "fault", "note"
#: Numbers of a place that the table shows: a batch has one for each column of each row.
_NUM_SHOWN = 12


@dataclass(frozen=True)
class Finding:
    """One thing that an audit found.

    Attributes:
        kind: what was attacked: ``epsilon``, ``range``, ``black-box``, ``not-finite``, ``tilt``, ``claim``, ``public``,
            ``base``, ``certificate``, ``normalizer``, ``draws``, ``dependent``, ``repeated``, ``refused`` or
            ``unchecked``.
        severity: ``fault`` or ``note``.
        text: what is wrong, and where.
        evidence: the number that shows it, in the unit that the text names.
    """

    kind: str
    severity: str
    text: str
    evidence: float = 0.0


class PendingTest(NamedTuple):
    """A test whose outcome waits for the number of tests, which sets the level of each.

    Attributes:
        p_value: of the hypothesis that nothing is wrong.
        finding: what is reported if the p-value is below the level.
    """

    p_value: float
    finding: Finding


Evidence = Finding | PendingTest


def fault(kind: str, text: str, evidence: float = 1.0) -> Finding:
    """Returns a finding that contradicts the claim, or what it rests on."""
    return Finding(kind, FAULT, text, evidence)


def note(text: str, evidence: float = 0.0) -> Finding:
    """Returns a finding on what could not be checked."""
    return Finding("unchecked", NOTE, text, evidence)


@dataclass(frozen=True)
class PairResult:
    """Largest log-ratios found on one pair of tables.

    Attributes:
        name: of the pair.
        white_box: largest absolute log-ratio found, in nats; None without ``log_prob``.
        log_ratio_range: largest less smallest log-ratio found, in nats; None without ``log_prob``.
        place: the x where the largest was found.
        black_box: epsilon that draws alone prove, in nats, at the level of the report; None without ``sample``.
        event: what the draws were told apart by.
        estimate: log-ratio of that event's counts, in nats, which ``black_box`` is a lower bound of; None without one.
        upper: upper bound on it, in nats.
    """

    name: str
    white_box: float | None = None
    log_ratio_range: float | None = None
    place: tuple[float, ...] = ()
    black_box: float | None = None
    event: str = ""
    estimate: float | None = None
    upper: float | None = None


@dataclass(frozen=True)
class AuditReport:
    r"""Result of an audit of a training function: log-ratios reached and faults found.

    Evidence, not a proof: a fault contradicts the claim, but that none was found proves nothing. Printed, it is a short
    table.

    Privacy:
        If nothing but made-up tables went in, and settings chosen without looking at a table, the report is public.
        Where an owner's own table was among them the report is as sensitive as that table: it tells densities of it.

    Attributes:
        claimed: the epsilon that was claimed of one draw, in nats.
        delta: the probability that a certificate is wrong, as claimed.
        confidence: with which all lower bounds from draws hold together.
        num_draws: draws of each density.
        pairs: what was reached, pair by pair.
        findings: what was found, faults first.
        seed: of the audit.

    Example:
        >>> report = AuditReport(1.0, pairs=(PairResult("corners", 0.97, 1.2, (0.5,), 0.83, "draws near 0.5"),))
        >>> report.passed, report.proven, report.where
        (True, 0.97, 'corners')
        >>> print(report)
        claimed epsilon 1, proven 0.97 (97%) on corners at x = (0.5); passed
        pair         white-box  range  black-box  told apart by
        corners           0.97    1.2       0.83  draws near 0.5
        An audit is evidence, not a proof: that no fault was found proves nothing.
    """

    claimed: float
    delta: float = 0.0
    confidence: float = 0.95
    num_draws: int = 0
    pairs: tuple[PairResult, ...] = ()
    findings: tuple[Finding, ...] = ()
    seed: int | None = None

    @property
    def faults(self) -> tuple[Finding, ...]:
        """Findings that contradict the claim, or what it rests on."""
        return tuple(finding for finding in self.findings if finding.severity == FAULT)

    @property
    def passed(self) -> bool:
        """Whether no fault was found and something was attacked: not that there is none."""
        reached = any(pair.white_box is not None or pair.black_box is not None for pair in self.pairs)
        return reached and not self.faults

    @property
    def white_box(self) -> float:
        """Largest log-ratio found between two densities, in nats: exact up to rounding."""
        return max((pair.white_box or 0.0 for pair in self.pairs), default=0.0)

    @property
    def black_box(self) -> float:
        """Largest epsilon that draws alone prove, in nats, at :attr:`confidence`."""
        return max((pair.black_box or 0.0 for pair in self.pairs), default=0.0)

    @property
    def proven(self) -> float:
        """The largest epsilon proved, either way: no claim below it can hold."""
        return max(self.white_box, self.black_box)

    @property
    def where(self) -> str:
        """Name of the pair of tables that proved most."""
        best = self._best()
        return best.name if best else ""

    @property
    def place(self) -> tuple[float, ...]:
        """The x at which the log-ratio of that pair is largest; empty if draws proved more."""
        best = self._best()
        return best.place if best and best.white_box == self.proven else ()

    def _best(self) -> PairResult | None:
        return max(self.pairs, key=lambda pair: max(pair.white_box or 0.0, pair.black_box or 0.0), default=None)

    def to_json(self) -> str:
        """Returns the report as JSON text, as sensitive as the report; infinite numbers as text."""
        facts = "claimed delta proven white_box black_box where place passed confidence num_draws seed".split()
        content = {fact: getattr(self, fact) for fact in facts}
        content["pairs"] = [vars(pair) for pair in self.pairs]
        content["findings"] = [vars(finding) for finding in self.findings]
        return json.dumps(_plain(content), indent=2, allow_nan=False)

    def __str__(self) -> str:
        """A short table."""
        verdict = "passed" if self.passed else "failed" if self.faults else "nothing attacked"
        share = f" ({100 * self.proven / self.claimed:.0f}%)" if math.isfinite(self.proven) else ""
        shown = ", ".join(f"{value:.4g}" for value in self.place[:_NUM_SHOWN])
        more = ", ..." if len(self.place) > _NUM_SHOWN else ""
        place = f" at x = ({shown}{more})" if self.place else ""
        where = f" on {self.where}{place}" if self.pairs else ""
        lines = [f"claimed epsilon {self.claimed:.4g}, proven {self.proven:.4g}{share}{where}; {verdict}"]
        width = max([12, *(len(pair.name) for pair in self.pairs)])
        lines.append(f"{'pair':<{width}} white-box  range  black-box  told apart by")
        for pair in self.pairs:
            lines.append(
                f"{pair.name:<{width}} {_cell(pair.white_box, 9)} {_cell(pair.log_ratio_range, 6)} "
                f"{_cell(pair.black_box, 10)}  {pair.event}".rstrip()
            )
        lines.extend(f"{finding.severity} ({finding.kind}): {finding.text}" for finding in self.findings)
        lines.append("An audit is evidence, not a proof: that no fault was found proves nothing.")
        return "\n".join(lines)


def _cell(value: float | None, width: int) -> str:
    return f"{'-' if value is None else f'{value:.4g}':>{width}}"


def _plain(value: Any) -> Any:
    """The value with infinities and NaN, which JSON has no numbers for, as text."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
