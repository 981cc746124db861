"""Stands in for ``python`` in a shell: what the process can run that a variable notes is a fork of that process."""

import sys

from tests.warm_python import noted

if __name__ == "__main__":
    process = noted()([sys.executable, *sys.argv[1:]])
    code = process.wait()
    sys.exit(code if code >= 0 else 128 - code)  # as a shell has it
