"""Sphinx configuration."""

import os
import sys
from importlib.metadata import version as installed_version
from pathlib import Path

# Executed pages run the commands of this interpreter's environment, also where that is not activated.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
os.environ["DOCS_PATH"] = os.environ["PATH"]  # for pages in a shell, whose start-up files may put another Python first
os.environ["JUPYTER_PATH"] = str(Path(__file__).parent / "_jupyter")

project = "pyro_mbde"
author = "The pyro_mbde developers"
version = release = installed_version("pyro_mbde")
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx-mathjax-offline",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
]
html_theme = "furo"
html_title = "pyro_mbde"
exclude_patterns = ["_build", "_jupyter"]
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
nb_execution_mode = "auto"
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_execution_timeout = 600
nb_merge_streams = True
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
napoleon_google_docstring = True
napoleon_use_ivar = True
napoleon_custom_sections = ["Privacy"]
