"""The command ``pyro-mbde``.

It stands beside the library, not in it: importing any part of ``pyro_mbde`` takes PyTorch and Pyro along, and help and
completion should not wait seconds for them. Nothing here imports the library before a command runs.
"""

from pyro_mbde.cli.app import main

__all__ = ["main"]
