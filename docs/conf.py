"""Sphinx configuration."""

from importlib.metadata import version as installed_version

project = "pyro_mbde"
author = "The pyro_mbde developers"
version = release = installed_version("pyro_mbde")
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx-mathjax-offline",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
html_theme = "furo"
html_title = "pyro_mbde"
exclude_patterns = ["_build"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
napoleon_google_docstring = True
napoleon_use_ivar = True
napoleon_custom_sections = ["Privacy"]
