"""Checks of what a ledger's caller passes; no error shows a fingerprint."""

from __future__ import annotations

import getpass
import os
import re
from typing import Any

from pyro_mbde._checks import argument_error
from pyro_mbde.ledger.accounts import check_text
from pyro_mbde.privacy.accounting import round_up
from pyro_mbde.privacy.guarantee import Guarantee

_FINGERPRINT, _HASH = re.compile("[0-9a-f]{32,128}"), re.compile("[0-9a-f]{64}")
_MAX_USER_NAME = 200


def check_guarantee(guarantee: Any) -> Guarantee:
    """Returns a guarantee as databases give it back: adding 0 makes a -0.0 the 0.0 that it is there.

    The total variation is rounded up in the ninth digit: processors disagree on its last, and one setting has one.
    """
    if not isinstance(guarantee, Guarantee):
        raise TypeError(argument_error("guarantee", "be a Guarantee", guarantee))
    total_variation = round_up(guarantee.total_variation) + 0.0
    parts = (guarantee.epsilon + 0.0, guarantee.delta + 0.0, guarantee.log_ratio_range + 0.0)
    return Guarantee(*parts, min(total_variation, 1.0))


def check_fingerprint(fingerprint: Any) -> str:
    """Returns a fingerprint in lower case, or raises if it is not one."""
    if not isinstance(fingerprint, str):
        raise TypeError(f"fingerprint must be a string, got one of type {type(fingerprint).__name__}.")
    if not _FINGERPRINT.fullmatch(fingerprint.lower()):
        raise ValueError(f"fingerprint must be 32 to 128 hexadecimal digits, got one of {len(fingerprint)} characters.")
    return fingerprint.lower()


def check_head(head: Any) -> str:
    """Returns a head in lower case, or raises if it is not a whole hash."""
    if not isinstance(head, str):
        raise TypeError(argument_error("expected_head", "be a string", head))
    if not _HASH.fullmatch(head.strip().lower()):
        remedy = "Pass the whole head, as it was printed: a part of it proves nothing."
        raise ValueError(argument_error("expected_head", "be 64 hexadecimal digits", head, remedy))
    return head.strip().lower()


def user_name(who: str | None) -> str:
    """Returns who was named, checked, or the name of the user that the operating system knows."""
    if who is not None:
        return check_text("who", who)
    try:
        name = getpass.getuser()
    except (KeyError, OSError, ImportError):  # a user without a name, as in some containers
        name = f"user {os.getuid()}" if hasattr(os, "getuid") else ""
    name = name if name.isprintable() else repr(name)
    return name.strip()[:_MAX_USER_NAME].strip() or "unknown"
