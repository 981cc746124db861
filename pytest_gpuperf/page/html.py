"""The page's content as HTML: one text, with styles, scripts and charts in it."""

from __future__ import annotations

import base64
import hashlib
import json
from importlib.metadata import version
from importlib.resources import files

from jinja2 import Environment, StrictUndefined

from pytest_gpuperf.baselines.json_text import rounded
from pytest_gpuperf.page.content import Content

_ASSETS = files("pytest_gpuperf.page") / "assets"


def html(content: Content) -> str:
    """Return the whole page.

    Whatever tests and files brought is escaped. Beyond that, the page's policy runs its own two scripts only, and loads
    nothing.
    """
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["min100"] = lambda value: min(value, 100.0)
    echarts, script = _asset("echarts.min.js"), _asset("page.js")
    return environment.from_string(_asset("page.html.j2")).render(
        content=content,
        title=f"pytest-gpuperf: {', '.join(content.keys)}",
        version=version("pytest-gpuperf"),
        css=_asset("page.css"),
        echarts=echarts,
        script=script,
        script_hashes=" ".join(f"'sha256-{_digest(text)}'" for text in (echarts, script)),
        drawings=_json({"moments": content.moments, "charts": rounded(content.drawings)}),
    )


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text("utf-8")


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _json(value: object) -> str:
    # Between script tags a browser looks for the end tag, and for comments, only; both begin with "<".
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
