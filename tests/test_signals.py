"""Requests to end: at once until something must be finished, then at its end."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from pyro_mbde._signals import finished_once_begun, must_be_finished, signals_put_off


@pytest.fixture(autouse=True)
def default_interrupts() -> Iterator[None]:
    """Ctrl-C raises, as in a terminal: jobs in the background of a shell are started without."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def raised(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Signals that are raised again."""
    found: list[int] = []
    monkeypatch.setattr(signal, "raise_signal", found.append)
    return found


def come(kind: signal.Signals) -> None:
    """As if it came from outside."""
    handler = signal.getsignal(kind)
    assert callable(handler)
    handler(kind, None)


def test_what_must_be_finished_ends_afterwards(raised: list[int]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    assert before is signal.SIG_DFL
    with finished_once_begun():
        assert signal.getsignal(signal.SIGTERM) is before
        must_be_finished()
        come(signal.SIGTERM)
        must_be_finished()  # once more changes nothing
        come(signal.SIGTERM)
        assert raised == []
    assert raised == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) is before


def test_an_error_in_what_must_be_finished(raised: list[int]) -> None:
    with pytest.raises(OSError, match="full"), finished_once_begun():
        must_be_finished()
        come(signal.SIGTERM)
        raise OSError("full")
    assert raised == [signal.SIGTERM]
    must_be_finished()  # outside such a block: nothing is put off
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_only_signals_that_are_named_are_put_off(raised: list[int]) -> None:
    with signals_put_off([signal.SIGTERM]) as came:
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert came() is None
        come(signal.SIGTERM)
        assert came() == signal.SIGTERM
    with signals_put_off([]):
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert raised == [signal.SIGTERM]
