"""Redirects the imports of the process that imports it, as its environment says; an arm's forkserver does so first."""

import os

from pytest_gpuperf.features.racing.arms.redirect import Redirect, install

NAME = __name__

if (_redirect := Redirect.from_environ(os.environ)) is not None:
    install(_redirect)
