"""Tasks of worker processes that fail; apart from the jobs of sweeps, whose import takes seconds."""

from __future__ import annotations

import json


class StubbornError(Exception):
    """An error that cannot be pickled."""

    def __init__(self, first: object, second: object) -> None:
        super().__init__(f"{first} {second}")


def be_stubborn() -> None:
    raise StubbornError("no", "way")


def parse(text: str = "{") -> object:
    return json.loads(text)
