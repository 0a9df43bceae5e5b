"""Sphinx configuration: `make docs`. Needs no network and no Django settings."""

project = "django-boundedpool"
author = "django-boundedpool contributors"
copyright = "2026, django-boundedpool contributors"

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
nitpicky = True
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence", "deflist"]

html_theme = "furo"
html_title = "django-boundedpool"
html_copy_source = False
html_show_sourcelink = False
