"""Settings are refused by name when they are wrong, and secrets stay out of every message."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from celery import Celery

from celery_lowkiq.integration import app as context
from celery_lowkiq.integration.error_text import MAX_ERROR_BYTES, dump_error, load_error
from celery_lowkiq.integration.settings import SETTINGS, read_settings
from celery_lowkiq.rules import claims
from celery_lowkiq.rules.errors import ConfigurationError
from celery_lowkiq.rules.models import ShardRef


def app(**settings):
    made = Celery("unit", broker="redis://localhost:1/0", set_as_current=False)
    made.conf.update(settings)
    return made


def test_defaults():
    settings = read_settings(app())
    assert (settings.poll_interval, settings.lease_seconds, settings.serializer) == (1.0, 10.0, "json")
    assert settings.scheduler is claims.lag


def test_values_and_dotted_paths():
    settings = read_settings(
        app(
            lowkiq_scheduler="seq",
            lowkiq_lanes=3,
            lowkiq_last_words="builtins.repr",
            lowkiq_server_middlewares=[print],
        )
    )
    assert settings.scheduler is claims.seq
    assert (settings.lanes, settings.last_words, settings.server_middlewares) == (3, repr, (print,))


@pytest.mark.parametrize(
    "given, scheduler",
    [
        ({"lowkiq_queue_weights": {"critical": 3}}, claims.weighted),
        ({"lowkiq_scheduler": "weighted"}, claims.weighted),
        ({"lowkiq_queue_weights": {"critical": 3}, "lowkiq_scheduler": "seq"}, claims.seq),
        ({"lowkiq_queue_weights": {}}, claims.lag),
    ],
)
def test_weights_choose_the_weighted_scheduler_unless_another_is_set(given, scheduler):
    found = read_settings(app(**given)).scheduler
    assert getattr(found, "func", found) is scheduler
    assert found()({ShardRef("critical", 0): 5.0}, 10.0) == ShardRef("critical", 0)


def test_a_namespace_works():
    made = Celery("unit", set_as_current=False)
    made.config_from_object(
        {"CELERY_LOWKIQ_POLL_INTERVAL": 7, "CELERY_BROKER_URL": "redis://x"}, namespace="CELERY"
    )
    assert read_settings(made).poll_interval == 7
    made = Celery("unit", set_as_current=False)
    made.config_from_object({"CELERY_LOWKIQ_POL_INTERVAL": 7}, namespace="CELERY")
    with pytest.raises(ConfigurationError, match="lowkiq_pol_interval is invalid"):
        read_settings(made)
    made = Celery("unit", set_as_current=False)
    made.config_from_object({"LOWKIQ_POLL_INTERVAL": 7}, namespace="CELERY")
    with pytest.raises(ConfigurationError, match=r"expected .* or 'CELERY_LOWKIQ_POLL_INTERVAL'"):
        read_settings(made)


@pytest.mark.parametrize("others", [{}, {"BROKER_URL": "redis://x"}, {"broker_url": "redis://x"}])
@pytest.mark.parametrize("as_module", [False, True])
def test_the_namespace_of_an_app_that_has_none_is_refused(others, as_module):
    """Celery's settings of old are upper-case, and many begin with CELERY_."""

    def configured(**settings):
        made = Celery("unit", set_as_current=False)
        given = {**others, **settings}
        made.config_from_object(SimpleNamespace(**given) if as_module else given)
        return made

    with pytest.raises(
        ConfigurationError, match=r"^CELERY_LOWKIQ_POLL_INTERVAL is .* expected 'lowkiq_poll_interval'\. As"
    ):
        read_settings(configured(CELERY_LOWKIQ_POLL_INTERVAL=7))
    with pytest.raises(ConfigurationError, match=r"^lowkiq_pol_interval is invalid: .* mean lowkiq_poll_int"):
        read_settings(configured(CELERY_LOWKIQ_POL_INTERVAL=7))
    assert read_settings(configured(lowkiq_poll_interval=7)).poll_interval == 7


def test_the_settings_of_another_apps_namespace_are_not_ours():
    """Two apps of a Django project may read the same settings."""
    made = Celery("unit", set_as_current=False)
    both = {"CELERY_LOWKIQ_POLL_INTERVAL": 7, "OTHER_LOWKIQ_POLL_INTERVAL": 8}
    made.config_from_object(both, namespace="OTHER")
    assert read_settings(made).poll_interval == 8


@pytest.mark.parametrize(
    "name, value, words",
    [
        (
            "lowkiq_pol_timeout",
            5,
            "lowkiq_pol_timeout is invalid: expected .*Did you mean lowkiq_pool_timeout",
        ),
        ("lowkiq_zzz", 5, "lowkiq_zzz is invalid: .*Known are"),
        ("lowkiq_poll_interval", "1", "lowkiq_poll_interval='1' is invalid: expected seconds from"),
        ("lowkiq_poll_interval", 0, "lowkiq_poll_interval=0"),
        ("lowkiq_lanes", 0, "lowkiq_lanes=0"),
        ("lowkiq_lanes", 2.5, "lowkiq_lanes=2.5"),
        ("lowkiq_lanes", True, "lowkiq_lanes=True"),
        ("lowkiq_scheduler", "fast", "lowkiq_scheduler='fast'.*'lag', 'seq'"),
        ("lowkiq_scheduler", "no.such.module", "cannot be imported"),
        ("lowkiq_max_payload_bytes", 2**21, "whole number from 1 to 1048576"),
        ("lowkiq_server_middlewares", print, "a list"),
        ("lowkiq_server_middlewares", ["no.such.thing"], "cannot be imported"),
        ("lowkiq_redis_options", [("a", 1)], "a dict of redis-py"),
        ("lowkiq_last_words", 5, "a function"),
        ("lowkiq_queue_weights", {"critical": 0}, r"\{'critical': 0\} is invalid.*0.001 to 1000"),
        ("lowkiq_queue_weights", {"critical": True}, "dict of queue names to numbers"),
        ("lowkiq_queue_weights", {5: 1}, "dict of queue names to numbers"),
        ("lowkiq_queue_weights", ["critical"], "dict of queue names to numbers"),
        ("LOWKIQ_LANES", 5, "LOWKIQ_LANES is invalid: expected 'lowkiq_lanes'"),
    ],
)
def test_bad_settings(name, value, words):
    with pytest.raises(ConfigurationError, match=words):
        read_settings(app(**{name: value}))


@pytest.mark.parametrize("name", ["lowkiq_url", "lowkiq_redis_options"])
def test_secrets_are_not_shown(name):
    with pytest.raises(ConfigurationError) as raised:
        read_settings(app(**{name: ["redis://:hunter2@localhost"]}))
    assert "hunter2" not in str(raised.value)


def test_a_context_is_not_shared_with_a_forked_child(monkeypatch):
    made = app()
    mine = context.context_of(made)
    assert context.context_of(made) is mine
    monkeypatch.setattr("os.getpid", lambda: mine.pid + 1)
    assert context.context_of(made) is not mine


class TestErrors:
    def test_the_text_is_bounded(self):
        settings = read_settings(app())
        data = dump_error(settings, ValueError("é" * 10_000))
        assert len(data) <= MAX_ERROR_BYTES
        assert load_error(settings, data).startswith("ValueError: éé")

    def test_the_users_functions_may_fail(self):
        def broken(value):
            raise RuntimeError("broken")

        settings = read_settings(
            app(lowkiq_format_error=broken, lowkiq_dump_error=broken, lowkiq_load_error=broken)
        )
        data = dump_error(settings, ValueError("x"))
        assert load_error(settings, data) == "ValueError: x"

    def test_an_error_that_cannot_be_shown(self):
        class Mute(Exception):
            def __str__(self):
                raise RuntimeError

        assert dump_error(read_settings(app()), Mute()).endswith(b"Mute: <exception str() failed>")
        assert dump_error(read_settings(app(lowkiq_format_error="message")), Mute()) == b"Mute"


def test_every_setting_has_a_default_that_is_allowed():
    for name, setting in SETTINGS.items():
        setting.valid.check(name, setting.default)


def test_celerys_reports_show_no_password():
    made = app(lowkiq_url="redis://:hush@localhost/1", lowkiq_web_auth="me:hush")
    assert "hush" not in made.bugreport()
    assert "hush" not in str(made.conf.table(with_defaults=False, censored=True))
    assert made.conf.lowkiq_url == "redis://:hush@localhost/1"
