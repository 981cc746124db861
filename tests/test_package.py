"""The public names."""

import re

import pytest

import pytest_gpuperf


@pytest.mark.parametrize("name", pytest_gpuperf.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(pytest_gpuperf, name) is not None


def test_the_version_is_the_distributions() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", pytest_gpuperf.__version__)


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"^module 'pytest_gpuperf' has no attribute 'Speed'$"):
        pytest_gpuperf.Speed  # noqa: B018
