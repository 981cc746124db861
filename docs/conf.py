"""How the site is built: ``make docs``."""

from __future__ import annotations

import sys
from importlib.metadata import version as version_of
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # reference_pages, which is no part of the package

project = "pytest-gpuperf"
author = "the pytest-gpuperf authors"
version = release = version_of("pytest-gpuperf")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "reference_pages"]
smartquotes = False  # they make a dash of the two that begin an option
exclude_patterns = ["adr", "design.md", "dev"]  # for contributors, who read them in the repository
html_theme = "furo"
html_title = "pytest-gpuperf"

myst_heading_anchors = 3
autodoc_typehints = "description"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "undoc-members": False, "exclude-members": "__init__, __new__"}
