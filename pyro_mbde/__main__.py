"""The command as ``python -m pyro_mbde``, and so as ``torchrun -m pyro_mbde``."""

from pyro_mbde.cli.app import main

if __name__ == "__main__":
    main(prog_name="pyro-mbde")
