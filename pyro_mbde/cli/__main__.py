"""The command as ``python -m pyro_mbde.cli``."""

from pyro_mbde.cli.app import main

if __name__ == "__main__":
    main(prog_name="pyro-mbde")
