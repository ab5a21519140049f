"""The command ``pyro-mbde``.

Importing PyTorch and Pyro takes seconds, which help and completion should not wait for: nothing here imports them
before a command runs.
"""

from pyro_mbde.cli.app import main

__all__ = ["main"]
