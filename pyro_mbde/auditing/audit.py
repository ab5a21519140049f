"""Attacks on a training function: a lower bound on the epsilon that it spends."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from torch.distributions import Distribution

from pyro_mbde._checks import argument_error, check_count, check_epsilon, check_number, check_seed
from pyro_mbde._torch_state import seeded, single_thread
from pyro_mbde.auditing.attack import Attack
from pyro_mbde.auditing.hostile_tables import TablePair, hostile_pairs, rows_at_the_peak
from pyro_mbde.auditing.progress import AuditProgress
from pyro_mbde.auditing.report import AuditReport
from pyro_mbde.density.base import prepare_base
from pyro_mbde.density.row_batch import RowBatch


def audit(
    fit: Callable[[Any], Any],
    epsilon: float,
    *,
    base: Distribution | None = None,
    tables: Mapping[str, tuple[Any, Any]] | None = None,
    num_pairs: int = 6,
    num_draws: int = 20_000,
    confidence: float = 0.95,
    seed: int | None = None,
    progress: bool = True,
) -> AuditReport:
    r"""Attacks a training function: fits pairs of hostile tables and looks for what contradicts the claimed epsilon.

    For the owner of a table before a release, and for developers of trainers. Each pair of tables gives densities
    :math:`q, q'`, fitted once and held fixed, so what is attacked is what a
    :class:`~pyro_mbde.privacy.guarantee.Guarantee` claims of any two fits, whatever randomness they used:

    - *white-box*, where there is a ``log_prob``: the x with the largest

      .. math::
          \left| \log \frac{q(x)}{q'(x)} \right| \le \epsilon ,

      by gradient ascent from base draws, rows and far points, then by local search; on a finite base by enumeration.
      A density that is NaN counts as an infinite ratio. Ratios are float64, from tilt and normaliser where both
      densities are this library's; the slack for rounding is 1e-9 nats then, and some units in the last place of
      ``log_prob`` otherwise.
    - *black-box*, on draws alone: an event chosen on half of them, and on the other half Clopper and Pearson's bounds
      on :math:`\log\,(\Pr[S] - \delta) / \Pr[S']`, either way; :math:`1 - \text{confidence}` is shared out among
      pairs, ways and bounds.
    - *assumptions of the claim*: base, bounds, guarantee and certificate are the same for every table; the guarantee is
      what bounds and certificate imply; the tilt is in its bounds to the last bit; ``log_prob`` integrates to 1; phi is
      where it is certified to be; draws follow ``log_prob``, do not depend on one another, and are made afresh. The
      tests among these share a level of 1 in 10,000 audits, evenly; some of their p-values are asymptotic. Beside that,
      a certificate may have failed, with probability delta a density. Derivation: docs/proofs.md, *Bounds by counting*.

    Proved of this library's trainers, in per cent of the claim, over the standard normal of the plane with four hostile
    pairs and 100,000 draws, white-box and black-box:

    ===========================  ===============  =============  =============
    epsilon                      0.1              1              5
    ===========================  ===============  =============  =============
    ``MBDE``                     88 and 17        87 and 46      80 and 52
    ``mollify(delta=0)``         87 and 12        88 and 46      91 and 49
    ``MBDE(calibrated=True)``    99.7 and 27      99.7 and 56    99.4 and 73
    ``mollify``                  99.7 and 24      99.7 and 78    99.4 and 95
    ``MBDE.paper``, exact draws  75 and 10        75 and 46      56 and 44
    ===========================  ===============  =============  =============

    It is evidence, not a proof: a fault contradicts the claim, no fault proves nothing. It does not see seeds that
    can be guessed, running times, how epsilon, skew and base were chosen before ``fit``, and how draws are used.

    Privacy:
        Public if only made-up tables went in. With ``tables`` of an owner's the report is as sensitive as they are.

    Args:
        fit: maps a table to a density: any object on the CPU with ``sample(sample_shape)``, ``log_prob(value)`` or
            both. To attack what is handed out, such as :func:`~pyro_mbde.private_draws`, return an object whose
            ``sample`` calls it. Choices made in ``fit`` are attacked, choices made before are not: let it be all that
            is claimed private.
        epsilon: claimed of one draw, in nats; in (0, inf).
        base: public base of rows to make hostile tables from; ``None`` to attack with ``tables`` only. ``fit`` may
            return densities of batches of such rows: epsilon is then claimed of a batch.
        tables: further pairs of tables by name, attacked first.
        num_pairs: hostile pairs made from the base, the sharpest first, at most 11; the last of them (of two or more)
            puts all rows where the attacks before peaked.
        num_draws: draws of each density, at least 1000.
        confidence: with which all black-box bounds hold together, in (0, 1).
        seed: of tables, search and draws (and of a fit that uses torch's global generator); ``None`` for the global
            generator as it is.
        progress: whether to show a progress bar that names the step under way.

    Returns:
        The report.

    Raises:
        TypeError: ``fit`` returns what can be neither drawn from nor evaluated.
        ValueError: there is neither a base nor a pair of tables.

    References:
        Jagielski, Ullman, Oprea. Auditing Differentially Private Machine Learning. 2020. Ding, Wang, Wang, Zhang,
        Kifer. Detecting Violations of Differential Privacy. 2018. Husain, Cranko, Nock. Integral Privacy for Sampling
        from Mollifier Densities. 2018. Definition 2.

    Example:
        >>> import torch
        >>> from pyro_mbde import MBDE, WeakLearner
        >>> base = torch.distributions.Normal(torch.tensor(0.0), torch.tensor(1.0))
        >>> trainer = MBDE(base, epsilon=1.0, weak_learner=WeakLearner(num_steps=60), progress=False)
        >>> report = audit(trainer.fit, 1.0, base=base, num_pairs=1, num_draws=2000, seed=0, progress=False)
        >>> report.passed, 0.8 < report.proven <= 1
        (True, True)
    """
    if not callable(fit):
        raise TypeError(argument_error("fit", "be a function of a table", fit))
    epsilon = check_number("epsilon", check_epsilon(epsilon), "be finite", math.isfinite)
    num_pairs = check_count("num_pairs", num_pairs, minimum=0)
    num_draws = check_count("num_draws", num_draws, minimum=1000)
    confidence = check_number("confidence", confidence, "be in (0, 1)", lambda value: 0 < value < 1)
    check_seed(seed)
    given = _check_tables(tables)
    prepared = None if base is None else prepare_base(base.row if isinstance(base, RowBatch) else base)
    with seeded(seed), single_thread():
        is_adaptive = prepared is not None and num_pairs >= 2
        made = [] if prepared is None else hostile_pairs(prepared, epsilon, num_pairs - is_adaptive)
        if not given and not made:
            raise ValueError(argument_error("base", "be given, or tables", base))
        total = len(given) + len(made) + is_adaptive
        with AuditProgress(total, show=progress) as steps:
            attack = Attack(fit, epsilon, num_draws, (1 - confidence) / total, steps)
            for pair in (*given, *made):
                attack.run(pair)
                steps.end_pair()
            if is_adaptive and attack.place is not None:
                assert prepared is not None
                attack.run(rows_at_the_peak(prepared, attack.place))
            steps.end_pair()
        return AuditReport(
            epsilon,
            delta=attack.delta,
            confidence=confidence,
            num_draws=num_draws,
            pairs=tuple(attack.results),
            findings=attack.verdict(),
            seed=seed,
        )


def _check_tables(tables: Any) -> list[TablePair]:
    if tables is None:
        return []
    values = list(tables.values()) if isinstance(tables, Mapping) else [tables]
    wrong = [value for value in values if not isinstance(value, tuple | list) or len(value) != 2]
    if wrong or not isinstance(tables, Mapping):
        raise TypeError(argument_error("tables", "map names to pairs of tables", type((wrong or values)[0]).__name__))
    return [TablePair(str(name), *pair) for name, pair in tables.items()]
