"""Sphinx configuration."""

import os
import re
import sys
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

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
html_title = f"pyro_mbde {version}"
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {"navigation_with_keys": True}
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
# Copied are commands, without prompts and without what they print.
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True
copybutton_line_continuation_character = "\\"


def with_links_of_pages(app: Any, path: Path, docname: str, content: list[str]) -> None:
    """Points links in files of the root, which pages include, to pages in place of files."""
    if Path(path).parent == Path(".."):
        text = content[0].replace("](docs/", "](")
        content[0] = re.sub(r"\]\((CHANGELOG|CONTRIBUTING|SECURITY)\.md", lambda m: f"]({m[1].lower()}.md", text)


def setup(app: Any) -> None:
    """Connects what this file adds to Sphinx."""
    app.connect("include-read", with_links_of_pages)
