"""The comment of a pull request, against an HTTP server that answers as GitHub's API does."""

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuperf.baselines.schema import Baselines
from pytest_gpuperf.features.github.pull_request import CommentError, PullRequest, format_marker, make_comment
from pytest_gpuperf.report.results_file import Results, write
from tests.report.examples import KEY, SAME

BOT = "github-actions[bot]"


class GitHubAnswers(BaseHTTPRequestHandler):
    """Keeps comments in memory."""

    comments: list[Any]
    redirect = ""
    """Where everything is now; empty for here."""
    answers: dict[str, bytes]
    """What to answer in place of comments, by method."""
    followed: list[str]
    """Requests that came to another address than the API's."""

    def do_GET(self) -> None:
        page = int(self.path.rpartition("page=")[2])
        self._answer(200, self.comments[(page - 1) * 100 : page * 100])

    def do_POST(self) -> None:
        self.comments.append({"id": len(self.comments), "user": {"login": BOT}, **self._body()})
        self._answer(201, self.comments[-1])

    def do_PATCH(self) -> None:
        comment = self.comments[int(self.path.rpartition("/")[2])]
        comment.update(self._body())
        self._answer(200, comment)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass

    def _body(self) -> Any:
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

    def _answer(self, status: int, data: object) -> None:
        if self.path.startswith("/elsewhere"):
            self.followed.append(f"{self.command} {self.headers['Authorization']}")
        elif self.redirect:
            self.send_response(302)
            self.send_header("Location", self.redirect)
            self.end_headers()
            return
        allowed = self.headers["Authorization"] == "Bearer secret"
        self.send_response(status if allowed else 403)
        self.end_headers()
        self.wfile.write(self.answers.get(self.command, json.dumps(data).encode()))


@pytest.fixture
def comments() -> list[Any]:
    return []


@pytest.fixture
def handler(comments: list[Any]) -> type[GitHubAnswers]:
    return type("Handler", (GitHubAnswers,), {"comments": comments, "answers": {}, "followed": []})


@pytest.fixture
def pull_request(handler: type[GitHubAnswers]) -> Iterator[PullRequest]:
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield PullRequest(f"http://127.0.0.1:{server.server_port}", "o/r", 7, "secret")
        server.shutdown()
        thread.join()


def test_a_comment_is_written_once_and_then_replaced(pull_request: PullRequest, comments: list[Any]) -> None:
    forged = {"id": 0, "user": {"login": "somebody"}, "body": format_marker(KEY)}
    comments += [forged, *({"id": n, "user": {"login": BOT}, "body": "other"} for n in range(1, 120))]
    assert pull_request.comment(KEY, "first") == "comment written"
    assert pull_request.comment(KEY, "second") == "comment replaced"
    assert [c["body"] for c in comments[120:]] == [f"{format_marker(KEY)}\nsecond"]
    assert comments[0]["body"] == format_marker(KEY)


def test_a_refusal_names_the_permission(pull_request: PullRequest) -> None:
    with pytest.raises(CommentError, match=r"got HTTP Error 403.*pull-requests: write"):
        replace(pull_request, token="wrong").comment(KEY, "text")


def test_the_token_goes_to_no_other_address(pull_request: PullRequest, handler: type[GitHubAnswers]) -> None:
    handler.redirect = f"{pull_request.api}/elsewhere?page=1"
    found = r"^GET .*got a redirect to http://.*/elsewhere.*the token goes to no other address: .*GITHUB_API_URL"
    with pytest.raises(CommentError, match=found):
        pull_request.comment(KEY, "text")
    assert handler.followed == []


def test_comments_without_user_or_body_are_somebody_elses(pull_request: PullRequest, comments: list[Any]) -> None:
    bot = {"login": BOT}
    others = [
        {"user": None, "body": format_marker(KEY)},
        {"user": bot, "body": None},
        {"id": None},
        None,
        "text",
        {"user": 1},
    ]
    comments += [*others, {"id": "7", "user": bot, "body": format_marker(KEY)}]
    assert pull_request.comment(KEY, "first") == "comment written"
    assert pull_request.comment(KEY, "second") == "comment replaced"
    assert comments[7]["body"].endswith("second")


@pytest.mark.parametrize(
    ("method", "answer", "found"),
    [
        ("GET", b'{"message": "Moved"}', r"GET .*got \{'message': 'Moved'\}, expected a list of comments: give"),
        ("POST", b'{"message": "No"}', r"POST .*got \{'message': 'No'\}, expected the comment as GitHub keeps it"),
        ("POST", b"[]", r"POST .*got \[\], expected the comment"),
        ("GET", b"<html>", r"GET .*expected an answer of GitHub's API"),
        ("GET", b"[" * 100_000, r"GET .*expected an answer of GitHub's API"),
    ],
)
def test_other_answers_are_refused(
    pull_request: PullRequest, handler: type[GitHubAnswers], method: str, answer: bytes, found: str
) -> None:
    handler.answers[method] = answer
    with pytest.raises(CommentError, match=found):
        pull_request.comment(KEY, "text")


def test_a_token_that_is_none_is_not_printed(pull_request: PullRequest) -> None:
    with pytest.raises(CommentError, match=r"^GITHUB_TOKEN: got a character that no token has") as refused:
        replace(pull_request, token="secret\n").comment(KEY, "text")
    assert "secret" not in str(refused.value)


def test_hostile_names_stay_text_in_a_comment(tmp_path: Path) -> None:
    hostile = replace(SAME, test="t.py::test_a[</code><img src=x>|`@all`\n::error::\x1b[2J]")
    write(tmp_path / "r.json", Results(Baselines(KEY, {}), (hostile,)))
    key, text = make_comment(tmp_path / "r.json")
    assert key == KEY
    assert "<img" not in text
    assert "\x1b" not in text
    assert "`" not in text
    assert not any(line.startswith("::") for line in text.splitlines())


def test_a_hostile_key_does_not_leave_the_marker() -> None:
    assert format_marker("a --> <b>") == "<!-- gpuperf a------b- -->"
