"""What is known of chains, for a terminal and a notebook."""

from __future__ import annotations

import html
import math
import re
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import pandas as pd

#: Rows of a table, names in a list, columns of a terminal.
_MAX_ROWS, MAX_NAMED, _WIDTH = 20, 3, 100


class ParameterSummary(NamedTuple):
    """One scalar parameter over all chains.

    Attributes:
        name: of the site, with the coordinate's index.
        mean: of the draws.
        sd: standard deviation of the draws.
        mcse: Monte Carlo standard error of the mean.
        q5: 5 % quantile.
        median: 50 % quantile.
        q95: 95 % quantile.
        rhat: rank-normalised split R-hat.
        ess_bulk: effective sample size of ranks.
        ess_tail: the smaller effective sample size of the 5 % and 95 % quantiles.
    """

    name: str
    mean: float
    sd: float
    mcse: float
    q5: float
    median: float
    q95: float
    rhat: float
    ess_bulk: float
    ess_tail: float


class Check(NamedTuple):
    """One thing that was checked.

    Attributes:
        name: what.
        detail: the figures in a sentence.
        failures: a reason for each failure; empty where there is none.
        skipped: whether it could not be checked.
    """

    name: str
    detail: str
    failures: tuple[str, ...] = ()
    skipped: bool = False

    @property
    def outcome(self) -> str:
        """``ok``, ``FAILED`` or ``skipped``."""
        return "FAILED" if self.failures else "skipped" if self.skipped else "ok"


class Deviation(NamedTuple):
    """A share of the chains' draws beside that of exact draws.

    Attributes:
        subject: the coordinate, the pair of coordinates, the direction, or the log-density.
        event: which draws are counted.
        share: of the chains' draws.
        expected: of exact draws.
        standard_error: of the difference, from the effective number of draws.
        p_value: two-sided, of this comparison alone.
    """

    subject: str
    event: str
    share: float
    expected: float
    standard_error: float
    p_value: float


@dataclass(frozen=True, repr=False)
class MixingReport:
    """What is known of chains: a summary of each parameter, the checks, and in plain words what failed.

    Prints as a table in a terminal and in a notebook.

    Privacy:
        As sensitive as the table that the density was fitted to: not for release.

    Attributes:
        kernel: name of the kernel.
        num_chains: number of chains.
        num_samples: draws of each chain.
        parameters: one summary a scalar parameter.
        bfmi: E-BFMI of each chain; empty where no energies were kept.
        deviations: the comparisons with exact draws, most improbable first; empty where there was no test.
        checks: what was checked, and the reasons for what failed.
    """

    kernel: str
    num_chains: int
    num_samples: int
    parameters: tuple[ParameterSummary, ...]
    bfmi: tuple[float, ...]
    deviations: tuple[Deviation, ...]
    checks: tuple[Check, ...]

    @property
    def failures(self) -> tuple[str, ...]:
        """A reason for each failure; empty for chains that passed."""
        return tuple(reason for check in self.checks for reason in check.failures)

    @property
    def passed(self) -> bool:
        """Whether nothing failed. What was skipped has not failed."""
        return not self.failures

    @property
    def worst_first(self) -> tuple[ParameterSummary, ...]:
        """The parameters, those with a missing or large R-hat and few effective draws first."""

        def goodness(parameter: ParameterSummary) -> tuple[float, float]:
            excess = parameter.rhat - 1
            return (-math.inf, 0.0) if math.isnan(excess) else (-round(excess, 3), parameter.ess_bulk)

        return tuple(sorted(self.parameters, key=goodness))

    def to_frame(self) -> pd.DataFrame:
        """Returns the summaries of all parameters as a table, one row a parameter."""
        import pandas as pd

        return pd.DataFrame(self.parameters, columns=ParameterSummary._fields).set_index("name")

    @property
    def title(self) -> str:
        """The verdict in a line."""
        return (
            f"{'Passed' if self.passed else 'FAILED'}: {count(self.num_chains, 'chain')} of "
            f"{count(self.num_samples, 'draw')}, {self.kernel}"
        )

    def renamed(self, names: Mapping[str, str]) -> MixingReport:
        """Returns the report with other names of coordinates, in all that it says.

        Args:
            names: by what they are called, as ``x[0]``.
        """
        if not names:
            return self
        pattern = re.compile("|".join(map(re.escape, names)))

        def rename(text: str) -> str:
            return pattern.sub(lambda found: names[found.group()], text)

        return replace(
            self,
            parameters=tuple(item._replace(name=rename(item.name)) for item in self.parameters),
            deviations=tuple(item._replace(subject=rename(item.subject)) for item in self.deviations),
            checks=tuple(
                check._replace(detail=rename(check.detail), failures=tuple(map(rename, check.failures)))
                for check in self.checks
            ),
        )

    def _rows(self) -> tuple[list[tuple[str, ...]], str]:
        """The header and the rows to show as text, and a note on what is not shown."""
        total = len(self.parameters)
        shown, note = self.parameters, ""
        if total > _MAX_ROWS:
            shown = self.worst_first[:_MAX_ROWS]
            note = f"The worst {_MAX_ROWS} of {total:,} parameters, by R-hat and effective sample size."
        header = ("parameter", "mean", "sd", "mcse", "5%", "50%", "95%", "rhat", "ess_bulk", "ess_tail")
        return [header, *(_cells(parameter) for parameter in shown)], note

    def __str__(self) -> str:
        """The table, the checks and the reasons, for a terminal."""
        rows, note = self._rows()
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        widths[0] = max(min(widths[0], _WIDTH - sum(widths[1:]) - 2 * len(widths[1:])), 9)
        lines = [self.title, ""]
        for row in rows:
            cells = [_shorten(row[0], widths[0]).ljust(widths[0])]
            cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
            lines.append("  ".join(cells))
        lines += [note, ""] if note else [""]
        for check in self.checks:
            lines += _wrap(f"{check.outcome:<8}{check.name}: {check.detail}", 8)
        if self.failures:
            lines += ["", "Why it failed"]
            for reason in self.failures:
                lines += _wrap(f"- {reason}", 2)
        return "\n".join(lines)

    def __repr__(self) -> str:
        """The class and how much it holds."""
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        shown = ", ".join(f"{name}=({len(v)} items)" if isinstance(v, tuple) else f"{name}={v!r}" for name, v in values)
        return f"{type(self).__name__}({shown})"

    def _repr_html_(self) -> str:
        rows, note = self._rows()
        left, right = "text-align:left;padding:2px 10px", "text-align:right;padding:2px 10px"

        def cells(row: tuple[str, ...], tag: str) -> str:
            styles = (left, *(right for _ in row[1:]))
            return "".join(
                f'<{tag} style="{style}">{html.escape(cell)}</{tag}>' for style, cell in zip(styles, row, strict=True)
            )

        body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows[1:])
        checks = "".join(
            f'<tr>{cells((check.name, check.outcome), "td")}<td style="{left}">{html.escape(check.detail)}</td></tr>'
            for check in self.checks
        )
        reasons = "".join(f"<li>{html.escape(reason)}</li>" for reason in self.failures)
        failed = f"<p><b>Why it failed</b></p><ul>{reasons}</ul>" if reasons else ""
        return (
            f"<div><p><b>{html.escape(self.title)}</b></p>"
            f"<table><thead><tr>{cells(rows[0], 'th')}</tr></thead><tbody>{body}</tbody></table>"
            f"<p>{html.escape(note)}</p><table><tbody>{checks}</tbody></table>{failed}</div>"
        )


def _cells(parameter: ParameterSummary) -> tuple[str, ...]:
    numbers = (f"{value:.3g}" for value in parameter[1:7])
    ess = (f"{value:.0f}" for value in parameter[8:])
    return (parameter.name, *numbers, f"{parameter.rhat:.3f}", *ess)


def _shorten(name: str, width: int) -> str:
    """A long name without its middle: its end tells coordinates apart."""
    if len(name) <= width:
        return name
    tail = (width - 1) * 2 // 3
    return f"{name[: width - 1 - tail]}…{name[len(name) - tail :]}"


def _wrap(text: str, indent: int) -> list[str]:
    return textwrap.wrap(text, _WIDTH, subsequent_indent=" " * indent, break_on_hyphens=False) or [text]


def count(number: int, noun: str) -> str:
    """As ``1 chain`` and ``1,024 chains``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def named(noun: str, items: Iterable[Any]) -> str:
    """As ``chains 0, 1, 2 and 5 more``."""
    names = [str(item) for item in items]
    listed, rest = ", ".join(names[:MAX_NAMED]), len(names) - MAX_NAMED
    return f"{noun}{'' if len(names) == 1 else 's'} {listed}{f' and {rest:,} more' if rest > 0 else ''}"
