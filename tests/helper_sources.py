"""A test folder with helpers beside its tests and in their package."""

HELPERS = {
    "beside/helper.py": """
class Shape:
    side = 3

def area(ctx):
    assert ctx.world_size == 2
    return Shape.side ** 2
""",
    "beside/test_beside.py": """
import pytest
import helper

@pytest.mark.ranks(2)
def test_helper(ranks):
    assert ranks.run(helper.area) == [9, 9]
    first, _ = ranks.run(lambda ctx: helper.Shape())
    assert type(first) is helper.Shape
""",
    "package/__init__.py": "",
    "package/far.py": "def far(ctx):\n    return f'far {ctx.rank}'\n",
    "package/subject/__init__.py": "",
    "package/subject/near.py": "from . import words\ndef near(ctx):\n    return f'{words.NEAR} {ctx.rank}'\n",
    "package/subject/words.py": "NEAR = 'near'\n",
    "package/subject/test_relative.py": """
import pytest
from .near import near
from ..far import far

@pytest.mark.ranks(2)
def test_near(ranks):
    assert ranks.run(near) == ["near 0", "near 1"]

@pytest.mark.ranks(2)
def test_far(ranks):
    assert ranks.run(far) == ["far 0", "far 1"]
""",
}

TESTS = ("test_helper[2ranks]", "test_near[2ranks]", "test_far[2ranks]")
