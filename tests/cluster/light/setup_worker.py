"""Becomes a worker of Ray in its actor's environment, as Ray's program of this name does, which imports Ray for that.

Ray takes it for its own by its name.
"""

import json
import os
import sys

_CONTEXT, _LANGUAGE = "--serialized-runtime-env-context", "--language"


def _main(arguments: list[str]) -> None:
    given: dict[str, str] = {}
    kept = []
    for argument in arguments:
        name, _, value = argument.partition("=")
        if name in (_CONTEXT, _LANGUAGE):
            given[name] = value
        else:
            kept.append(argument)
    context = json.loads(given.get(_CONTEXT) or "{}")
    others = set(context) - {"env_vars", "py_executable"}
    if any(context[name] for name in others):
        raise NotImplementedError(f"actors of tests set variables only, not {context}")
    os.environ.update(context.get("env_vars") or {})
    python = context.get("py_executable") or sys.executable
    os.execv(python, [python, *kept])


if __name__ == "__main__":
    _main(sys.argv[1:])
