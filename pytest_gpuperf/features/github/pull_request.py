"""The metrics of a pull request as one comment, which later runs replace."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any, NoReturn
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, Request, build_opener

from pytest_gpuperf.features.github.markdown import format_markdown
from pytest_gpuperf.report.command_error import CommandError
from pytest_gpuperf.report.findings import Findings
from pytest_gpuperf.report.results_file import load

COMMENT_LIMIT = 60_000  # bytes; GitHub takes 65536 characters
_PAGE = 100
_SECONDS = 30
_REDIRECTS = (301, 302, 303, 307, 308)
_ANSWER = "an answer of GitHub's API"


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
        body = f"{format_marker(key)}\n{text}"
        issues = f"{self.api}/repos/{self.repository}/issues"
        page = 1
        while True:
            address = f"{issues}/{self.number}/comments?per_page={_PAGE}&page={page}"
            comments = self._ask("GET", address)
            if not isinstance(comments, list):
                self._refuse("GET", address, comments, "a list of comments")
            for comment in comments:
                if self._is_ours(comment, key):
                    self._write("PATCH", f"{issues}/comments/{comment['id']}", body)
                    return "comment replaced"
            if len(comments) < _PAGE:
                break
            page += 1
        self._write("POST", f"{issues}/{self.number}/comments", body)
        return "comment written"

    def _is_ours(self, comment: object, key: str) -> bool:
        """Return whether an earlier run wrote this comment: anybody can write the marker, only we are the author.

        The user is null if the account is gone, and the body may be null too.
        """
        if not isinstance(comment, dict) or not isinstance(comment.get("user"), dict):
            return False
        body = comment.get("body")
        ours = (
            comment["user"].get("login") == self.author
            and isinstance(body, str)
            and body.startswith(format_marker(key))
        )
        return ours and isinstance(comment.get("id"), int)

    def _write(self, method: str, address: str, body: str) -> None:
        answer = self._ask(method, address, {"body": body})
        if not isinstance(answer, dict) or not isinstance(answer.get("id"), int):
            self._refuse(method, address, answer, "the comment as GitHub keeps it")

    def _ask(self, method: str, address: str, data: Mapping[str, str] | None = None) -> Any:
        if not (self.token.isascii() and self.token.isprintable()):  # an error of the library's would print it
            raise CommentError("GITHUB_TOKEN: got a character that no token has, expected a token: set it again")
        headers = {"Authorization": f"Bearer {self.token}", "Accept": "application/vnd.github+json"}
        raw = None if data is None else json.dumps(data).encode()
        try:
            request = Request(address, raw, headers, method=method)
            with build_opener(_NoRedirects).open(request, timeout=_SECONDS) as answer:
                return json.load(answer)
        except HTTPError as error:
            if error.code not in _REDIRECTS:
                self._refuse(method, address, error, _ANSWER, error)
            raise CommentError(
                f"{method} {address}: got a redirect to {error.headers.get('Location', 'nowhere')}, expected {_ANSWER}:"
                " the token goes to no other address: name the new one by GITHUB_API_URL or GITHUB_REPOSITORY"
            ) from error
        except (OSError, HTTPException, ValueError, RecursionError) as error:
            self._refuse(method, address, error, _ANSWER, error)

    def _refuse(
        self, method: str, address: str, got: object, expected: str, cause: Exception | None = None
    ) -> NoReturn:
        raise CommentError(
            f"{method} {address}: got {got!s:.200}, expected {expected}: give the job the permission "
            "pull-requests: write, and check the token and the number"
        ) from cause


class _NoRedirects(HTTPRedirectHandler):
    """Leaves a redirect an error: urllib would take the token along, and make a GET of a POST."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Return no request to go on with."""


def format_marker(key: str) -> str:
    """The first line of the comment of a hardware; GitHub shows nothing of it."""
    return f"<!-- gpuperf {''.join(c if c.isalnum() else '-' for c in key)} -->"


def make_comment(results: Path) -> tuple[str, str]:
    """The hardware key and the Markdown of a file of results.

    Raises:
        ResultsError: The file cannot be used.
    """
    loaded = load(results)
    findings = Findings()
    findings.verdicts += loaded.verdicts
    findings.unchecked += [(one.test, one.metric_name) for one in loaded.unchecked]
    closing = [] if loaded.verdicts else ["the results hold no metrics"]
    return loaded.candidate.hardware_key, format_markdown(findings, closing, COMMENT_LIMIT)
