"""The policy of the rule: one that decides nothing is refused."""

import math
from typing import Any

import pytest

from pytest_gpuperf.verdicts.race import Decision
from pytest_gpuperf.verdicts.rule import Policy, Rule
from tests.baselines.by_hand import close, scattered


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"minimum_effect": 0.0}, r"policy minimum_effect is 0\.0, expected a finite number above 0"),
        ({"minimum_slowdown": math.inf}, "policy minimum_slowdown is inf, expected a finite number above 0"),
        ({"suite_alpha": 0.5}, r"policy suite_alpha is 0\.5, expected a chance between 0 and 0\.5"),
        ({"suite_alpha": 0}, r"policy suite_alpha is 0, expected a chance between 0 and 0\.5"),
        # ln 1.05 + z(0.05) * 0.005 sqrt(2 pi / 3 / 14) = 0.051971, which is a slowdown by 5.33 %
        (
            {"minimum_effect": 0.05},
            r"policy minimum_slowdown is 0\.05, but minimum_effect 0\.05 lets no race see less than 0\.0533: "
            "raise minimum_slowdown, or lower minimum_effect",
        ),
    ],
)
def test_a_policy_that_decides_nothing_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        Policy(**fields)


def test_a_policy_just_short_of_refusal_decides_something() -> None:
    with pytest.raises(ValueError, match="lets no race see less than"):
        Policy(minimum_effect=0.0467)
    rule = Rule.of(Policy(minimum_effect=0.0466), [], 1)
    assert rule.race(scattered(1000, 0.0, 0.0), [0.0] * 14, [0.05] * 14).decision is Decision.ACCUSED


def test_a_policy_in_logarithms() -> None:
    assert (Policy().slower, Policy().least) == (close(0.04879016), close(0.01488861))
