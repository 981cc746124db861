"""The policy of the rule: one that decides nothing is refused."""

import math
from typing import Any

import pytest

from pytest_gpuperf.verdicts.rule import Policy, Rule
from tests.baselines.by_hand import close, scattered


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"min_effect": 0.0}, r"policy min_effect is 0\.0, expected a finite number above 0"),
        ({"detect": math.inf}, "policy detect is inf, expected a finite number above 0"),
        ({"floor": -0.01}, r"policy floor is -0\.01, expected a finite number above 0"),
        ({"prior_dof": 0}, "policy prior_dof is 0, expected a finite number above 0"),
        ({"suite_alpha": 0.5}, r"policy suite_alpha is 0\.5, expected a chance between 0 and 0\.5"),
        ({"suite_alpha": 0}, r"policy suite_alpha is 0, expected a chance between 0 and 0\.5"),
        ({"power": 0.5}, r"policy power is 0\.5, expected a chance between 0\.5 and 1"),
        ({"power": 95}, r"policy power is 95, expected a chance between 0\.5 and 1"),
        (
            {"kmin": 2},
            "policy kmin is 2, expected a whole number of at least 3: "
            "the median of fewer launches does not outvote a bad one",
        ),
        ({"kmin": 3.0}, r"policy kmin is 3\.0, expected a whole number of at least 3: .*"),
        ({"kmax": 4}, "policy kmax is 4, expected a whole number of at least kmin, 5"),
        # ln 1.05 + z(0.03) * 0.003 sqrt(pi / 50) = 0.050204, which is a slowdown by 5.15 %
        (
            {"min_effect": 0.05},
            r"policy detect is 0\.05, but min_effect 0\.05, floor 0\.003 and kmax 25 let no check see less than "
            r"0\.0515: raise detect, or lower min_effect",
        ),
        # (z(0.01) + z(0.03)) * 0.1 sqrt(pi / 50) = 0.105456, which is a slowdown by 11.12 %
        ({"floor": 0.1}, r"policy detect is 0\.05, but .* let no check see less than 0\.1112: .*"),
    ],
)
def test_a_policy_that_decides_nothing_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        Policy(**fields)


@pytest.mark.parametrize("checks", [1, 1000])
def test_a_policy_just_short_of_refusal_decides_something(checks: int) -> None:
    policy = Policy(min_effect=0.0484)
    with pytest.raises(ValueError, match="let no check see less than"):
        Policy(min_effect=0.0486)
    assert Rule(policy, checks, 0.003).launches(scattered(1000, 0.0, 0.003)) is not None


def test_the_misses_of_screen_and_confirmation_add_up() -> None:
    assert (Policy().screen_miss, Policy().confirm_miss) == (close(0.02), close(0.03))
