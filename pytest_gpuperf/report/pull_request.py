"""The figures of a pull request as one comment, which later runs replace."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from pytest_gpuperf.report.command_error import CommandError
from pytest_gpuperf.report.findings import Findings
from pytest_gpuperf.report.markdown import markdown
from pytest_gpuperf.report.results_file import load

COMMENT_LIMIT = 60_000  # bytes; GitHub takes 65536 characters
_PAGE = 100
_SECONDS = 30


class CommentError(CommandError):
    """GitHub did not take the comment; the message names the request, the answer, and the cure."""


@dataclass(frozen=True, slots=True)
class PullRequest:
    """A pull request, and the author of its comment."""

    api: str
    """Address of the API, of ``GITHUB_API_URL``."""
    repository: str
    number: int
    token: str
    author: str = "github-actions[bot]"
    """Whose comments may be replaced."""

    def comment(self, key: str, text: str) -> str:
        """Writes the comment, or replaces the one of an earlier run on this hardware.

        Returns:
            What was done.

        Raises:
            CommentError: GitHub refused, or did not answer.
        """
        body = f"{marker(key)}\n{text}"
        issues = f"{self.api}/repos/{self.repository}/issues"
        page = 1
        while True:
            comments = self._ask("GET", f"{issues}/{self.number}/comments?per_page={_PAGE}&page={page}")
            for comment in comments:
                # Anybody can write the marker: only our own comment is ours.
                if comment["user"]["login"] == self.author and comment["body"].startswith(marker(key)):
                    self._ask("PATCH", f"{issues}/comments/{int(comment['id'])}", {"body": body})
                    return "comment replaced"
            if len(comments) < _PAGE:
                break
            page += 1
        self._ask("POST", f"{issues}/{self.number}/comments", {"body": body})
        return "comment written"

    def _ask(self, method: str, address: str, data: Mapping[str, str] | None = None) -> Any:
        headers = {"Authorization": f"Bearer {self.token}", "Accept": "application/vnd.github+json"}
        raw = None if data is None else json.dumps(data).encode()
        try:
            with urlopen(Request(address, raw, headers, method=method), timeout=_SECONDS) as answer:
                return json.load(answer)
        except (HTTPError, URLError, TimeoutError, ValueError) as error:
            raise CommentError(
                f"{method} {address}: got {error}, expected an answer of GitHub's API: give the job "
                "the permission pull-requests: write, and check the token and the number"
            ) from error


def marker(key: str) -> str:
    """The first line of the comment of a hardware; GitHub shows nothing of it."""
    return f"<!-- gpuperf {''.join(c if c.isalnum() else '-' for c in key)} -->"


def comment_of(results: Path) -> tuple[str, str]:
    """The hardware key and the Markdown of a file of results.

    Raises:
        ResultsError: The file cannot be used.
    """
    loaded = load(results)
    findings = Findings()
    findings.verdicts += loaded.verdicts
    findings.unchecked += [(one.test, one.metric_name) for one in loaded.unchecked]
    closing = [] if loaded.verdicts else ["the results hold no figures"]
    return loaded.candidate.hardware_key, markdown(findings, closing, COMMENT_LIMIT)
