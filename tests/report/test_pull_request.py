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
from pytest_gpuperf.report.pull_request import CommentError, PullRequest, comment_of, marker
from pytest_gpuperf.report.results_file import Results, write
from tests.report.examples import KEY, SAME

BOT = "github-actions[bot]"


class GitHubAnswers(BaseHTTPRequestHandler):
    """Keeps comments in memory."""

    comments: list[dict[str, Any]]

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
        allowed = self.headers["Authorization"] == "Bearer secret"
        self.send_response(status if allowed else 403)
        self.end_headers()
        self.wfile.write(json.dumps(data).encode())


@pytest.fixture
def comments() -> list[dict[str, Any]]:
    return []


@pytest.fixture
def pull_request(comments: list[dict[str, Any]]) -> Iterator[PullRequest]:
    handler = type("Handler", (GitHubAnswers,), {"comments": comments})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield PullRequest(f"http://127.0.0.1:{server.server_port}", "o/r", 7, "secret")
        server.shutdown()
        thread.join()


def test_a_comment_is_written_once_and_then_replaced(pull_request: PullRequest, comments: list[dict[str, Any]]) -> None:
    forged = {"id": 0, "user": {"login": "somebody"}, "body": marker(KEY)}
    comments += [forged, *({"id": n, "user": {"login": BOT}, "body": "other"} for n in range(1, 120))]
    assert pull_request.comment(KEY, "first") == "comment written"
    assert pull_request.comment(KEY, "second") == "comment replaced"
    assert [c["body"] for c in comments[120:]] == [f"{marker(KEY)}\nsecond"]
    assert comments[0]["body"] == marker(KEY)


def test_a_refusal_names_the_permission(pull_request: PullRequest) -> None:
    with pytest.raises(CommentError, match=r"got HTTP Error 403.*pull-requests: write"):
        replace(pull_request, token="wrong").comment(KEY, "text")


def test_hostile_names_stay_text_in_a_comment(tmp_path: Path) -> None:
    hostile = replace(SAME, test="t.py::test_a[</code><img src=x>|`@all`\n::error::\x1b[2J]")
    write(tmp_path / "r.json", Results(Baselines(KEY, {}), (hostile,)))
    key, text = comment_of(tmp_path / "r.json")
    assert key == KEY
    assert "<img" not in text
    assert "\x1b" not in text
    assert "`" not in text
    assert not any(line.startswith("::") for line in text.splitlines())


def test_a_hostile_key_does_not_leave_the_marker() -> None:
    assert marker("a --> <b>") == "<!-- gpuperf a------b- -->"
