"""Commands of git, run alike wherever this package needs one; in pytest's process."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

_SECONDS = 60.0  # a repository on a hung network disk must not hang the run
_WORDS = 600  # characters of git's own message in ours
_LOCAL = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_PREFIX", "GIT_OBJECT_DIRECTORY")


class GitFailed(Exception):
    """A command of git failed; its text is what git printed last."""


class NoGit(GitFailed):
    """Git is not installed, or not on PATH."""


def run_git(folder: Path, *arguments: str, timeout: float = _SECONDS) -> str:
    """Return what a command of git prints, without the spaces around it. Changes neither the index nor any setting.

    Bytes that are no UTF-8, as names of files may have, become lone surrogates; ``show`` replaces these.

    Args:
        folder: where it runs.
        arguments: of git.
        timeout: seconds.

    Raises:
        NoGit: git is not installed.
        GitFailed: the command failed or took too long.
    """
    # No hooks: those of a checkout may do anything. No lock that is not needed: the index may be locked by others.
    command = ["git", "--no-optional-locks", "-c", f"core.hooksPath={os.devnull}", *arguments]
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=_make_environment(os.environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout,
            check=False,
        )
    except FileNotFoundError as error:
        if not folder.is_dir():
            raise GitFailed(f"there is no folder {folder}") from error
        raise NoGit("git is not installed, or not on PATH") from error
    except subprocess.TimeoutExpired as error:
        raise GitFailed(f"it did not end within {timeout:g} s") from error
    except OSError as error:
        raise GitFailed(f"it cannot be started: got {error!r}") from error
    if done.returncode != 0:
        raise GitFailed((_decode_text(done.stderr) or f"exit code {done.returncode}")[-_WORDS:])
    return _decode_text(done.stdout)


def show(text: str) -> str:
    """Return git's text as files and terminals can have it: U+FFFD stands for bytes that are no UTF-8."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _decode_text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape").strip()


def _make_environment(environ: Mapping[str, str]) -> dict[str, str]:
    # pytest may be run by a hook of git's, which names its own index and work tree.
    kept = {name: value for name, value in environ.items() if name not in _LOCAL}
    return {**kept, "LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"}
