"""Ray's token: without one, whoever reaches the ports of a cluster can run code on its nodes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pytest_gpuperf.features.cluster.failures import ClusterError

MODE = "RAY_AUTH_MODE"
_TOKEN, _FILE = "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
_DEFAULT_FILE = Path(".ray", "auth_token")  # in the home folder
_OPEN = "disabled"


def read_mode(environ: Mapping[str, str], home: Path) -> str:
    """The authentication that this process uses with Ray; ``token`` unless the user says otherwise.

    Args:
        environ: the environment of the process.
        home: its home folder.

    Raises:
        ClusterError: there is no token where Ray looks for one.
    """
    mode = environ.get(MODE, "").lower() or "token"
    if mode != "token" or environ.get(_TOKEN, "").strip():
        return mode
    file = Path(environ[_FILE]) if environ.get(_FILE) else home / _DEFAULT_FILE
    try:
        found = "no text" if not file.read_text().strip() else ""
    except (OSError, UnicodeDecodeError) as error:
        found = getattr(error, "strerror", None) or "no text"
    if found:
        raise ClusterError(
            f"--cluster needs the token of the Ray cluster, because without one whoever reaches its ports can run code "
            f"on the nodes: got {found} in {file}, and no {_TOKEN}: run `ray get-auth-token --generate` once, copy "
            f"{home / _DEFAULT_FILE} to every node, and `export {MODE}=token` before `ray start`; or, if nobody else "
            f"reaches the nodes, `export {MODE}={_OPEN}` before pytest"
        )
    return mode


def format_warning(environ: Mapping[str, str]) -> str:
    """A line for the header of a run whose cluster may be open; empty if it asks for a token."""
    if environ.get(MODE, "").lower() != _OPEN:
        return ""
    return f"{MODE}={_OPEN}: whoever reaches the ports of Ray can run code on the nodes"
