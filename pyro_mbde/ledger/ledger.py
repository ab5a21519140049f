"""A ledger of privacy budgets: accounts, the draws charged to them, and proof that nothing was changed since."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, TypeVar

from sqlalchemy import Connection

from pyro_mbde._checks import argument_error, check_count, check_number
from pyro_mbde.ledger import rows
from pyro_mbde.ledger.accounts import (
    DEFAULT_DELTA,
    MAX_COUNTED,
    Account,
    BudgetExceededError,
    Charge,
    Tally,
    add_draws,
    affordable_draws,
    as_counted,
    check_text,
    is_affordable,
    make_account,
    spent_by,
)
from pyro_mbde.ledger.arguments import check_fingerprint, check_guarantee, check_head, user_name
from pyro_mbde.ledger.chain import Verification
from pyro_mbde.ledger.database import Database
from pyro_mbde.ledger.errors import LedgerError
from pyro_mbde.ledger.refusals import Shortage, beyond_limits, find_shortage, refusal_reason
from pyro_mbde.ledger.verify import verify
from pyro_mbde.privacy.accounting import TotalCost
from pyro_mbde.privacy.guarantee import Guarantee

__all__ = ["Account", "BudgetExceededError", "Charge", "Ledger", "LedgerError", "Verification"]

Result = TypeVar("Result")
Row = Mapping[str, Any]


class Ledger:
    r"""Keeps privacy budgets where they outlive the process, and charges draws to them before they are drawn.

    A ledger is an SQLite file, or tables in a PostgreSQL database; any number of processes may use it at once. Charges
    are made one after the other, each wholly or not at all, and have reached the disk when :meth:`charge` returns.
    Charge first, draw after: a process that is killed in between has paid for draws that nobody saw, never the reverse.

    :class:`Account` states what an account guarantees. A density is charged to one account alone. Rows are
    only ever added; triggers refuse to edit, delete or replace them, and each row (the opening of an account, a charge,
    a closing) holds a SHA-256 of its content and of the hash before it. There is one chain through the whole
    ledger rather than one for each account, so that an account deleted with all its charges is missed too, and so that
    one hash, :meth:`head`, stands for everything; in return charges to different accounts wait for one another, some
    milliseconds each. :meth:`verify` goes through the chain and names the rows that were edited, swapped, deleted or
    inserted. The first charge of a ledger that was opened looks whether any are lost.

    Limits: whoever can write the file can drop the triggers; whoever rewrites the chain from some row on, or cuts off
    its end and resets the head, leaves a valid ledger. Only a head that was noted where they cannot write reveals that:
    pass it to :meth:`verify`. Draws that were never charged are not in the ledger.

    Privacy:
        For the data owner and auditors. Guarantees, numbers of draws, purposes, names and times are public facts, and
        so is all that a refusal says; a purpose must not come from the table. Fingerprints are salted by 128 random
        bits that are kept in the model file and generated whenever a density is fitted or mollified: they, the hashes
        and the head say nothing about the table to anyone without that file. Even so no error shows a fingerprint. Note
        the head where auditors read it.

    Args:
        path_or_url: path of a file, which is made if there is none, ``sqlite:///PATH``, or
            ``postgresql://USER:PASSWORD@HOST/DATABASE`` (``pip install 'pyro_mbde[postgresql]'``), where the tables
            are made. A file belongs on a local disk: network file systems lock unreliably. It must have one path,
            beside which its journal lies: mount its folder, never the file, and make no hard link to it. A new file is
            for its owner alone (mode 0600), who may widen that for an auditor, to whom the right to read is enough: the
            mode of a file that is there is left alone.
        timeout: seconds to wait for others that charge at the same time; above 0.

    Raises:
        ValueError: the URL is of another database; by the methods, where no account has the name they are given.
        LedgerError: there is no database there, it holds something else, or a newer release made it; or its file has
            several hard links, or is mounted without its folder. By the methods, where the ledger cannot be read or
            written, is not whole, or what they read was tampered with.

    References:
        Haber, Stornetta. How to Time-Stamp a Digital Document. 1991 (chained hashes, and heads that are noted
        elsewhere).

    Example:
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> with Ledger(f"{folder.name}/budget.db") as ledger:
        ...     account = ledger.open_account("clinic-2026", epsilon=3.0)
        ...     density, guarantee = "5e" * 32, Guarantee(epsilon=0.25, log_ratio_range=0.25)
        ...     charge = ledger.charge("clinic-2026", guarantee, 8, fingerprint=density, purpose="a first look")
        ...     ledger.spent("clinic-2026"), ledger.affordable("clinic-2026", guarantee, density), ledger.verify().ok
        (TotalCost(epsilon=2.0, delta=0.0, rule='pure composition'), 4, True)
        >>> folder.cleanup()
    """

    def __init__(self, path_or_url: str | os.PathLike[str], *, timeout: float = 60.0) -> None:
        timeout = check_number("timeout", timeout, "be above 0 and at most a day", lambda value: 0 < value <= 86_400)
        self._database = Database(path_or_url, timeout)
        self._is_whole = False

    def __repr__(self) -> str:
        """Names the file or the URL, without its password."""
        return f"Ledger({str(self._database)!r})"

    def __enter__(self) -> Ledger:
        """Returns the ledger, which the block's end closes."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Closes the ledger."""
        self.close()

    def close(self) -> None:
        """Closes the connections to the database; a ledger that is used again opens new ones."""
        self._database.close()

    def open_account(
        self,
        name: str,
        epsilon: float,
        delta: float = DEFAULT_DELTA,
        rule: str = "pure",
        certificate_delta: float | None = None,
    ) -> Account:
        r"""Opens an account: a permanent limit on what draws from one table cost together.

        How draws are added up is decided before anything is drawn. The rule cannot change, as it must not be chosen by
        looking at draws (proof: docs/proofs.md, *Accounts*):

        - ``pure``: any number of fits, chosen along the way; epsilons add up, and delta pays for certificates only. For
          few draws.
        - ``zcdp``: any number of fits, chosen along the way; the rho of zCDP adds up, converted at what certificates
          leave of delta. For many draws.
        - ``placement``: any number of fits, chosen along the way, at one epsilon and one skew, which the first charge
          fixes; :func:`~pyro_mbde.privacy.placement.placement_epsilon`. The cheapest for several calibrated draws.
        - ``iid``: any number of draws, asked for along the way, of one fitted density; the exact curve of
          :func:`~pyro_mbde.compose`. The cheapest for many draws of an a-priori density.

        Args:
            name: what to call it; printable, at most 200 characters, and unlike the name of any account in the ledger,
                open or closed. It is put into Unicode's form NFKC.
            epsilon: of everything drawn, in nats; finite and above 0.
            delta: of everything drawn, in [0, 1); above 0 except under ``pure``. The default pays for a thousand
                certificates of 1e-9; with 0, only densities without a certificate can be charged.
            rule: ``pure``, ``zcdp``, ``placement`` or ``iid``.
            certificate_delta: what of delta the certificates of all fits together may take, in [0, delta); ``None`` for
                a tenth. The rest is for the conversion. ``pure`` leaves it all to them.

        Returns:
            The account.

        Raises:
            ValueError: an account has that name or one that looks like it.

        Example:
            >>> import tempfile
            >>> folder = tempfile.TemporaryDirectory()
            >>> ledger = Ledger(f"{folder.name}/budget.db")
            >>> account = ledger.open_account("survey", epsilon=3.0, rule="zcdp")
            >>> guarantee = Guarantee(epsilon=0.1, log_ratio_range=0.1)
            >>> ledger.affordable("survey", guarantee, "5e" * 32)  # pure composition would afford 30
            146
            >>> ledger.close(); folder.cleanup()
        """
        account = make_account(name, epsilon, delta, rule, certificate_delta, _now())

        def work(connection: Connection, head: Row) -> Account:
            rows.check_new(connection, account.name)
            rows.append(connection, head, "account", rows.account_row(account))
            return account

        return self._write(work)

    def close_account(self, name: str, *, who: str | None = None) -> Account:
        """Closes an account that was opened by mistake, one without charges, permanently.

        The chain keeps its opening and its closing, and nothing can be charged to it any more. Its name is not used
        again, so that it never stands for a second limit. An account with charges stays open, as
        what was charged does.

        Args:
            name: of the account.
            who: who closes it; ``None`` for the name of the user that the operating system knows.

        Returns:
            The account.

        Raises:
            ValueError: there is no such account, it is closed, or it was charged.
        """
        check_text("name", name)
        who = user_name(who)

        def work(connection: Connection, head: Row) -> Account:
            account = rows.read_account(connection, name)
            if account.closed is not None:
                raise ValueError(argument_error("name", "be that of an open account", name, "It is closed already."))
            if rows.read_tallies(connection, account.name):
                remedy = "What was charged stays charged; leave it open, and charge no more."
                raise ValueError(argument_error("name", "be that of an account without charges", name, remedy))
            when = _now()
            rows.append(connection, head, "closing", {"account": account.name, "closed": when.isoformat(), "who": who})
            return replace(account, closed=when)

        return self._write(work)

    def charge(
        self,
        account_name: str,
        guarantee: Guarantee,
        num_draws: int,
        *,
        fingerprint: str,
        purpose: str = "",
        who: str | None = None,
    ) -> Charge:
        """Charges draws to an account, or refuses and charges nothing. To be called before they are drawn.

        The delta of a certificate counts once for a fitted density and guarantee, however many draws follow.

        Args:
            account_name: name of the account.
            guarantee: of one draw.
            num_draws: how many draws to pay for; at least 1.
            fingerprint: name of the fitted density, 32 to 128 hexadecimal digits, such as a SHA-256 of it and a random
                salt. Densities that differ must not share one.
            purpose: what the draws are for; printable, at most 2,000 characters. It is kept and shown: nothing in it
                may come from the table.
            who: who charges; ``None`` for the name of the user that the operating system knows.

        Returns:
            The charge, which has reached the disk, with what the account has spent by then.

        Raises:
            BudgetExceededError: the account cannot afford it, or is closed; the density was charged to another account
                before, or with a smaller total variation; or the account is for draws of one density (``iid``) or of
                one setting (``placement``), and another was asked for.
        """
        guarantee = check_guarantee(guarantee)
        num_draws = check_count("num_draws", num_draws)
        check_number("num_draws", num_draws, f"be at most {MAX_COUNTED:,}", lambda value: value <= MAX_COUNTED)
        fingerprint = check_fingerprint(fingerprint)
        purpose, who = check_text("purpose", purpose), user_name(who)
        check_text("account_name", account_name)

        def work(connection: Connection, head: Row) -> Charge | tuple[Account, list[Tally], Tally]:
            account = rows.read_account(connection, account_name)
            before = rows.read_tallies(connection, account.name)
            asked = as_counted(before, Tally(fingerprint, guarantee, num_draws))
            other = rows.account_charged_before(connection, account.name, fingerprint)
            if refusal := refusal_reason(account, before, asked, other):
                raise BudgetExceededError(refusal)
            after = add_draws(before, asked)
            if not is_affordable(account, after):
                return account, before, asked
            density = rows.density_row(account.name, fingerprint, asked.guarantee)
            row = {**density, "charged": _now().isoformat(), "num_draws": num_draws, "purpose": purpose, "who": who}
            row = rows.append(connection, head, "charge", row)
            rows.write_tally(connection, density, after[-1].num_draws, is_new=len(after) > len(before))
            return replace(rows.to_charge(row), spent=spent_by(account, after))

        outcome = self._write(work)
        if isinstance(outcome, Charge):
            return outcome
        # The message is computed after the lock is released.
        raise BudgetExceededError(beyond_limits(*outcome))

    def accounts(self) -> list[Account]:
        """Returns all accounts, in the order in which they were opened."""
        return self._database.read(rows.read_accounts)

    def account(self, name: str) -> Account:
        """Returns an account.

        Args:
            name: of the account.
        """
        check_text("name", name)
        return self._database.read(lambda connection: rows.read_account(connection, name))

    def charges(self, name: str) -> list[Charge]:
        """Returns all charges to an account, in their order.

        Args:
            name: of the account.
        """
        check_text("name", name)
        return self._database.read(
            lambda connection: rows.read_charges(connection, rows.read_account(connection, name).name)
        )

    def spent(self, name: str) -> TotalCost:
        """Returns what was charged to an account, added up by its rule.

        The guarantee is the account's own epsilon and delta, whatever is looked at; this is how much of them is used.
        Except under ``pure`` its delta is all of the account's, from the first draw on.

        Args:
            name: of the account.

        Returns:
            The total, at most the account's; of nothing, 0.
        """
        check_text("name", name)

        def work(connection: Connection) -> TotalCost:
            account = rows.read_account(connection, name)
            return spent_by(account, rows.read_tallies(connection, account.name))

        return self._database.read(work)

    def affordable(self, name: str, guarantee: Guarantee, fingerprint: str) -> int:
        """Returns how many more draws of a density an account can afford.

        Args:
            name: of the account.
            guarantee: of one draw.
            fingerprint: name of the fitted density.

        Returns:
            The largest number that :meth:`charge` would accept now, 0 if none; never more than 10^12.
        """
        check_text("name", name)
        guarantee, fingerprint = check_guarantee(guarantee), check_fingerprint(fingerprint)

        def work(connection: Connection) -> int:
            account = rows.read_account(connection, name)
            other = rows.account_charged_before(connection, account.name, fingerprint)
            tallies = rows.read_tallies(connection, account.name)
            asked = as_counted(tallies, Tally(fingerprint, guarantee, 0))
            if refusal_reason(account, tallies, asked, other):
                return 0
            return affordable_draws(account, tallies, asked.guarantee, fingerprint)

        return self._database.read(work)

    def shortage(self, name: str, guarantee: Guarantee, fingerprint: str) -> Shortage | None:
        """Returns why an account cannot afford one more draw of a density.

        Args:
            name: of the account.
            guarantee: of one draw.
            fingerprint: name of the fitted density.

        Returns:
            What is in the way, by kind and in words; ``None`` if :meth:`charge` would accept one draw now.
        """
        check_text("name", name)
        guarantee, fingerprint = check_guarantee(guarantee), check_fingerprint(fingerprint)

        def work(connection: Connection) -> Shortage | None:
            account = rows.read_account(connection, name)
            other = rows.account_charged_before(connection, account.name, fingerprint)
            tallies = rows.read_tallies(connection, account.name)
            return find_shortage(account, tallies, as_counted(tallies, Tally(fingerprint, guarantee, 1)), other)

        return self._database.read(work)

    def shared_densities(self) -> list[tuple[str, ...]]:
        """Returns the accounts that are charged for draws of one density, so that their limits add up: sets of names.

        No charge makes one any more; releases that did not look let it happen.
        """
        return self._database.read(rows.read_shared_densities)

    def head(self) -> str:
        """Returns the hash of the last entry. Noted where nobody can change it, it proves all entries up to it."""
        return str(self._database.read(lambda connection: rows.read_head(connection)["hash"]))

    def verify(self, expected_head: str | None = None) -> Verification:
        """Goes through the whole ledger and reports what was changed since it was written.

        Found and named are rows edited, swapped, deleted or inserted, accounts edited, sums that differ from the
        charges, charges beyond a limit, densities that were charged to several accounts, triggers that are missing or
        altered, and damage to an SQLite file. A clock that ran backwards is not a problem. For what cannot be found
        without ``expected_head``, see :class:`Ledger`.

        Args:
            expected_head: what :meth:`head` or an earlier verification returned, whole. It must be in the ledger, which
                may have grown since.

        Returns:
            What was found.

        Raises:
            TypeError: ``expected_head`` is not a string.
            ValueError: ``expected_head`` is not a hash of 64 hexadecimal digits.
        """
        if expected_head is not None:
            expected_head = check_head(expected_head)
        return self._database.read(lambda connection: verify(connection, expected_head))

    def _write(self, work: Callable[[Connection, Row], Result]) -> Result:
        """Runs work at the end of the chain, after a look at the whole ledger the first time."""

        def checked(connection: Connection) -> Result:
            head = rows.read_head(connection, lock=True)
            rows.check_last(connection, head)
            if not self._is_whole:
                rows.check_whole(connection, head)
            return work(connection, head)

        outcome = self._database.write(checked)
        self._is_whole = True
        return outcome


def _now() -> datetime:
    return datetime.now(UTC)
