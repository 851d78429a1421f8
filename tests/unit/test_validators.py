"""Validators, and the declarations that use them."""

from __future__ import annotations

from typing import Literal, get_args

import pytest

from celery_lowkiq import ConfigurationError, OrderedTask, ordered_task
from celery_lowkiq.integration import options, settings
from celery_lowkiq.integration import options as queue_options
from celery_lowkiq.rules import validators
from celery_lowkiq.rules.models import Merge
from celery_lowkiq.rules.policies import AfterFailure, WhenFull
from celery_lowkiq.store.durability import Level

WHOLE = validators.whole(1, 9)


@pytest.mark.parametrize(
    "validator, expected, good, bad",
    [
        (WHOLE, "a whole number from 1 to 9", [1, 9], [0, 10, 1.0, True, "1", None]),
        (validators.whole(1, of="jobs"), "a whole number of jobs from 1", [1, 10**400], [0, False]),
        (WHOLE.or_none(), "a whole number from 1 to 9, or None", [None, 1], [0]),
        (
            validators.seconds(0.5, 60),
            "seconds from 0.5 to 60",
            [0.5, 60],
            [0.4, 61, float("nan"), float("inf"), "1", True],
        ),
        (validators.one_of(Literal["a", "b", "c"]), "'a', 'b' or 'c'", ["a", "c"], ["d", [], None]),
        (validators.boolean, "True or False", [True, False], [0, 1, None]),
        (validators.text(), "a text", ["x"], ["", b"x", None]),
    ],
)
def test_validators(validator, expected, good, bad):
    assert validator.expected == expected
    for value in good:
        assert validator.check("it", value) == value
    for value in bad:
        assert not validator.accepts(value)


def test_an_error_names_the_value_and_what_is_expected():
    with pytest.raises(ConfigurationError) as raised:
        WHOLE.check("lanes", 0)
    assert str(raised.value) == "lanes=0 is invalid: expected a whole number from 1 to 9"
    with pytest.raises(ConfigurationError) as raised:
        WHOLE.check("password", "hunter2", secret=True)
    assert str(raised.value) == "password is invalid: expected a whole number from 1 to 9"


def test_every_option_is_an_attribute_with_a_valid_default():
    for name, option in options.OPTIONS.items():
        assert getattr(OrderedTask, name) == option.default
        option.valid.check(name, option.default)


@pytest.mark.parametrize("name", options.OPTIONS)
def test_every_option_refuses_a_value_of_another_type(name):
    with pytest.raises(ConfigurationError, match=f"^task: {name}=.* is invalid: expected "):
        ordered_task(name="task", **{name: object()})(print)


@pytest.mark.parametrize(
    "literal, enum",
    [
        (options.MergeRule, Merge),
        (queue_options.WhenPushedAfterFailure, AfterFailure),
        (queue_options.WhenQueueFull, WhenFull),
        (settings.PushDurability, Level),
    ],
)
def test_the_words_of_an_option_are_those_of_the_rules(literal, enum):
    assert list(get_args(literal)) == [member.value for member in enum]
