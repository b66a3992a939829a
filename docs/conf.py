"""How Sphinx builds the site (`make docs`). Its source is the whole repository, so every link works in both places."""

import sys
from importlib.metadata import version as installed_version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # for site_builder, next to this file

project = "qkv"
author = "the qkv authors"
project_copyright = "the qkv authors, Apache-2.0"
version = release = installed_version("qkv")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode", "site_builder"]
root_doc = "docs/index"
include_patterns = ["docs/**.md", "papers/*.md", "decisions/*.md", "CHANGELOG.md", "CONTRIBUTING.md", "LOG.md"]
exclude_patterns = [".*", "build", "dist", "runs", "site"]

html_theme = "furo"
html_title = f"qkv {release}"
html_show_sourcelink = False

myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 3
html_math_renderer = "mathml"  # from site_builder: needs no script and no network

autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False
autodoc_default_options = {"members": True, "ignore-module-all": True}  # a name is described where it is defined
autodoc_use_type_comments = False  # there are none, and looking for them parses every function once more
autodoc_preserve_defaults = True  # a default reads as it is written in the code
python_use_unqualified_type_names = True
