"""Where an answer cannot be shown, what was charged or opened is not reported as failed."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

import pytest
from cli_words import RELEASE, ROOT, Run

from pyro_mbde import Ledger
from pyro_mbde.cli import main

#: Printable, and in no code page of Windows.
NAME = "größe→数"
Stream = Callable[[], TextIO | None]


def full() -> TextIO:
    return open("/dev/full", "w")


def unread() -> TextIO:
    reading, writing = os.pipe()
    os.close(reading)
    return os.fdopen(writing, "w")


def closed() -> TextIO:
    stream = open(os.devnull, "w")
    stream.close()
    return stream


def absent() -> None:
    """What Python has where the descriptor was closed at its start."""


def western() -> TextIO:
    return io.TextIOWrapper(io.BytesIO(), encoding="cp1252")


STREAMS = [pytest.param(stream, id=stream.__name__) for stream in (full, unread, closed, absent, western)]


class Ends:
    """Runs the command on streams, and returns its exit code.

    Args:
        monkeypatch: sets the streams.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.streams: list[TextIO | None] = []

    def __call__(
        self, *words: object, out: Stream = western, err: Stream = western, stdin: TextIO | None = None
    ) -> int:
        self.streams += [out(), err()]
        with self._monkeypatch.context() as patch:
            for name, stream in zip(("stdin", "stdout", "stderr"), (stdin, *self.streams[-2:]), strict=True):
                patch.setattr(sys, name, stream)
            with pytest.raises(SystemExit) as ended:
                main([str(word) for word in words], prog_name="pyro-mbde")
        assert isinstance(ended.value.code, int)
        return ended.value.code

    @property
    def out(self) -> str:
        """What the last command answered."""
        return told(self.streams[-2])

    @property
    def err(self) -> str:
        """What it said beside."""
        return told(self.streams[-1])


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ends]:
    ends = Ends(monkeypatch)
    yield ends
    for stream in ends.streams:
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()


def told(stream: TextIO | None) -> str:
    assert isinstance(stream, io.TextIOWrapper) and isinstance(stream.buffer, io.BytesIO)
    return stream.buffer.getvalue().decode("cp1252")


def open_words(name: str = NAME, epsilon: float = 3) -> tuple[object, ...]:
    return ("budget", "open", name, "--epsilon", epsilon, "--ledger", "budget.db")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
class TestWhatWasDone:
    @pytest.mark.parametrize(
        ("stream", "as_json"),
        [*((stream, ()) for stream in (full, unread, closed, absent, western)), (full, ("--json",))],
    )
    def test_rows_are_released(self, ends: Ends, model: Path, stream: Stream, as_json: tuple[str]) -> None:
        assert ends(*open_words(epsilon=7), *as_json, out=stream) == 0
        words = (*RELEASE[:5], "--account", NAME, "--purpose", "für → 数")
        for number, streams in enumerate(({"out": stream}, {"err": stream}, {"out": stream, "err": stream}), 1):
            assert ends(*words, "-o", f"{number}.csv", *as_json, **streams) == 0
            assert Path(f"{number}.csv").exists()
            with Ledger("budget.db") as ledger:
                assert len(ledger.charges(NAME)) == number
                assert ledger.spent(NAME).epsilon == 2 * number
                assert ledger.verify().ok
        assert ends(*words, "-o", "more.csv", *as_json, err=stream) == 3

    @pytest.mark.parametrize("stream", STREAMS)
    def test_accounts_are_opened_and_closed(self, ends: Ends, stream: Stream) -> None:
        assert ends(*open_words(), out=stream, err=stream) == 0
        assert ends("budget", "close", NAME, "--ledger", "budget.db", out=stream, err=stream) == 0
        with Ledger("budget.db") as ledger:
            assert [account.closed is None for account in ledger.accounts()] == [False]

    def test_a_warning_says_so(self, ends: Ends, model: Path) -> None:
        assert ends(*open_words(), out=full) == 0
        assert ends.err == (
            "Warning: the answer could not be written: No space left on device. "
            "The work is done; the exit code says how it ended.\n"
        )
        assert ends(*open_words("another"), out=unread) == 0
        assert "Warning: the answer could not be written: Broken pipe." in ends.err

    def test_characters_are_written_as_escapes(self, ends: Ends) -> None:
        assert ends(*open_words()) == 0
        assert ends.out == "opened größe\\u2192\\u6570: epsilon 3, delta 1e-06, rule pure\n"
        assert ends.err == ""
        assert ends("budget", "show", "--ledger", "budget.db") == 0
        assert "größe\\u2192\\u6570" in ends.out


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
class TestWhatWasAsked:
    """Of a command that changes nothing the answer is all there is."""

    @pytest.fixture(autouse=True)
    def ledger(self, run: Run) -> None:
        run(*open_words("clinic"))

    @pytest.mark.parametrize("stream", [full, closed, absent])
    def test_an_answer_that_is_lost(self, ends: Ends, stream: Stream) -> None:
        assert ends("budget", "show", "--ledger", "budget.db", out=stream) == 1
        assert ends.err.startswith("Error: The answer could not be written: ")

    def test_a_reader_who_left(self, ends: Ends) -> None:
        assert ends("budget", "show", "--ledger", "budget.db", out=unread) == 0
        assert ends.err == ""
        assert ends("--help", out=unread) == 1
        assert ends.err == ""

    @pytest.mark.parametrize("stream", STREAMS)
    def test_a_fault_that_was_found(self, ends: Ends, stream: Stream) -> None:
        words = ("budget", "verify", "--ledger", "budget.db", "--head", "0" * 64)
        assert ends(*words, out=stream, err=stream) == 4

    @pytest.mark.parametrize("stream", STREAMS)
    def test_errors_keep_their_codes(self, ends: Ends, stream: Stream) -> None:
        assert ends("budget", "show", NAME, "--ledger", "budget.db", err=stream) == 1
        assert ends("budget", "show", "--nonsense", err=stream) == 2
        assert ends(*open_words("clinic"), err=stream) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("redirected", "told"),
    [
        (">/dev/full", "No space left on device"),
        (">&-", "it is closed"),
        ("2>&-", ""),
        (">&- 2>&-", ""),
        (">/dev/full 2>/dev/full", ""),
        ("| true", ""),
        ("2>&1 | true", ""),
    ],
)
def test_as_it_is_used(redirected: str, told: str) -> None:
    """Python writes what is left in its buffers at its end, and exits with 120 where it cannot."""
    words = f"budget open {NAME} --epsilon 3 --ledger budget.db"
    command = f"{sys.executable} -m pyro_mbde.cli {words} {redirected}; exit ${{PIPESTATUS[0]}}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "cp1252"}
    completed = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, timeout=300)
    assert completed.returncode == 0, completed.stderr
    assert told in completed.stderr.decode("cp1252")
    assert b"Traceback" not in completed.stderr
    with Ledger("budget.db") as ledger:
        assert [account.name for account in ledger.accounts()] == [NAME]
