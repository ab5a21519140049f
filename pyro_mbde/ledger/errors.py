"""Errors of the database of a ledger, in words, and whether the write took place."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from pyro_mbde.ledger.schema import NotALedgerError

#: PostgreSQL's codes for a transaction that may be tried again: serialization failure, deadlock.
TRY_AGAIN = ("40001", "40P01")
#: Beginnings of SQLite's names and PostgreSQL's codes of errors where the right to write is missing.
NOT_WRITABLE = ("SQLITE_READONLY", "25006", "42501")

MOVED = ("its file was taken away or replaced.", "Put it back, or open the ledger again.")
_NOTHING_LOST = "Nothing was charged, and what was charged before is safe."
_NOT_KNOWN = "It is not known whether what was written last was recorded: see charges()."

#: What goes wrong, by the beginnings of SQLite's names and PostgreSQL's codes of errors; and what to do then.
_TROUBLES: list[tuple[tuple[str, ...], str, str]] = [
    (("SQLITE_FULL", "53100"), "its disk is full.", "Make room and try again."),
    (
        ("SQLITE_READONLY_ROLLBACK",),
        "its last charge was interrupted and has to be undone, which takes the right to write.",
        "Have its owner open it once: pyro-mbde budget show does.",
    ),
    (("SQLITE_READONLY_DBMOVED",), *MOVED),
    (("SQLITE_READONLY", "25006"), "it cannot be written.", "Make the file and its folder writable."),
    (
        ("SQLITE_BUSY", "SQLITE_LOCKED", "55P03", "57014"),
        "it was locked for too long.",
        "Try again, or find what holds it.",
    ),
    (("SQLITE_NOTADB",), "it is not a database.", "Check the path."),
    (
        ("SQLITE_CORRUPT", "SQLITE_FORMAT", "XX00"),
        "it is damaged.",
        "Restore it from a copy, and charge what was drawn since again.",
    ),
    (
        ("SQLITE_CANTOPEN", "SQLITE_PERM", "SQLITE_AUTH"),
        "it cannot be opened.",
        "Check that its folder exists and that folder and file are readable and writable.",
    ),
    (
        ("SQLITE_IOERR",),
        "its disk fails or lets no more be written.",
        "Check the disk, its room and the file size limit.",
    ),
    (
        ("42501",),
        "its user may not do this.",
        "Grant it SELECT on the tables of the ledger, to read it, and INSERT and UPDATE, to charge.",
    ),
    (("28", "3D000"), "the server refuses the user or has no such database.", "Check the URL."),
    (("53300", "57P03"), "the server takes no more connections now.", "Try again later."),
    (TRY_AGAIN, "others charged at the same time, again and again.", "Try again."),
]


class LedgerError(RuntimeError):
    """A ledger that cannot be read or written: damaged, locked, full, too new, or no ledger at all.

    A charge that ends in it was not made, unless the message says that this is not known.
    """


@dataclass
class TransactionProgress:
    """How far a transaction came, which decides what an error in it leaves behind."""

    writes: bool = False
    commits: bool = False


def unusable(place: str, what: str) -> LedgerError:
    """Returns the error of a ledger that cannot be used.

    Args:
        place: path or URL, without a password.
        what: the cause, and what to do.
    """
    return LedgerError(f"The ledger {place} could not be used: {what}")


def error_code(error: BaseException | None) -> str:
    """Returns SQLite's name or PostgreSQL's code of an error; empty if it has none."""
    origin = getattr(error, "orig", None) or error
    return str(getattr(origin, "sqlite_errorname", None) or getattr(origin, "sqlstate", None) or "")


def to_ledger_error(place: str, error: BaseException, progress: TransactionProgress) -> LedgerError:
    """Returns a database's error in words.

    Args:
        place: path or URL, without a password.
        error: of the database.
        progress: how far the transaction came.
    """
    if isinstance(error, NotALedgerError):
        return unusable(place, f"{error}. It was left as it is.")
    code = error_code(error)
    detail = " ".join(str(getattr(error, "orig", None) or error).split())
    known = [(what, remedy) for beginnings, what, remedy in _TROUBLES if code.startswith(beginnings)]
    what, remedy = detail, "Run verify() for details."
    if known:
        what, remedy = known[0]
    elif isinstance(error, PoolTimeoutError):
        what, remedy = "too many threads use it at once.", "Try again."
    elif isinstance(error, IntegrityError) or code == "P0001":
        what = "its tables contradict one another."
    elif isinstance(error, UnicodeError):
        what, remedy = "its encoding lacks a character.", "Use a database in UTF-8."
    elif _is_lost(error):
        what, remedy = f"no connection, or it was lost: {detail}", "Check that the server runs."
    return unusable(place, f"{what} {remedy} {_left_behind(error, progress)}".rstrip())


def _left_behind(error: BaseException, progress: TransactionProgress) -> str:
    """Whether the write took place."""
    if not progress.writes:
        return ""
    # What was written before its commit is rolled back; and so is it if the commit was answered by a refusal. A disk
    # that fails to sync may have the commit's last page.
    unsynced = error_code(error).startswith("SQLITE_IOERR") and error_code(error) != "SQLITE_IOERR_WRITE"
    return _NOT_KNOWN if progress.commits and (_is_lost(error) or unsynced) else _NOTHING_LOST


def _is_lost(error: BaseException) -> bool:
    """Whether the connection was lost, so that an answer to a commit may be too."""
    code = error_code(error)
    # 08: connection exception. 40003: statement completion unknown. 57P: the server shuts down.
    return isinstance(error, DBAPIError) and (
        error.connection_invalidated or not code or code.startswith(("08", "40003", "57P"))
    )
