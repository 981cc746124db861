"""The page's content as HTML: one text, with styles, scripts and charts in it."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import math
from importlib.metadata import version
from importlib.resources import files

from jinja2 import Environment, StrictUndefined, Template

from pytest_gpuperf.baselines.json_text import round_floats
from pytest_gpuperf.features.page import points
from pytest_gpuperf.features.page.content import Content

_ASSETS = files("pytest_gpuperf.features.page") / "assets"


def render_html(content: Content) -> str:
    """Return the whole page.

    Whatever tests and files brought is escaped. Beyond that, the page's policy runs its own two scripts only, and loads
    nothing.
    """
    echarts, script = _read_asset("echarts.min.js"), _read_asset("page.js")
    return _make_template().render(
        content=content,
        points={"width": points.WIDTH, "height": points.HEIGHT},
        title=f"pytest-gpuperf: {', '.join(content.keys)}",
        version=version("pytest-gpuperf"),
        css=_read_asset("page.css"),
        echarts=echarts,
        script=script,
        script_hashes=" ".join(f"'sha256-{_compute_digest(text)}'" for text in (echarts, script)),
        drawings=_format_json({"moments": content.moments, "charts": _make_drawable(round_floats(content.drawings))}),
    )


@functools.cache
def _make_template() -> Template:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["min100"] = lambda value: min(value, 100.0)
    return environment.from_string(_read_asset("page.html.j2"))


def _read_asset(name: str) -> str:
    return (_ASSETS / name).read_text("utf-8")


def _compute_digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _make_drawable(value: object) -> object:
    """Return the drawings with null for a number that is beyond what JSON has, as extreme figures give in an axis."""
    if isinstance(value, dict):
        return {key: _make_drawable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_make_drawable(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _format_json(value: object) -> str:
    # Between script tags a browser looks for the end tag, and for comments, only; both begin with "<".
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
