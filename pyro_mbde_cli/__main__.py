"""The command as ``python -m pyro_mbde_cli``."""

from pyro_mbde_cli.app import main

if __name__ == "__main__":
    main(prog_name="pyro-mbde")
