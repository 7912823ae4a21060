"""The options of [tx]: typed, with defaults, and one clear line for a value that cannot be used."""

from __future__ import annotations

from dataclasses import fields

import pytest

from airflow_tx.base.config import Settings
from airflow_tx.base.errors import ConfigError
from airflow_tx.provider_info import OPTIONS


def _read(**options: str) -> Settings:
    return Settings.read(options.get)


def test_every_option_that_is_not_configured_has_its_default() -> None:
    settings = _read()
    assert settings.zookeeper_conn_id == "zookeeper_default"
    assert settings.root == "/airflow_tx"
    assert settings.max_pending == 1
    assert settings.processing_timeout == 3600
    assert settings.staging == ""
    assert settings.history == 1000
    assert settings.warm_wait == 60
    assert settings.min_deferral == 10


def test_exactly_the_declared_options_are_read() -> None:
    assert [field.name for field in fields(Settings)] == list(OPTIONS)


def test_values_of_options_are_converted_to_their_types() -> None:
    settings = _read(max_pending="4", warm_wait="0.5", root=" /a/b ")
    assert (settings.max_pending, settings.warm_wait, settings.root) == (4, 0.5, "/a/b")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("zookeeper_conn_id", " "),
        ("root", "airflow_tx"),
        ("root", "/"),
        ("root", "/a/"),
        ("root", "/a//b"),
        ("root", "/zookeeper/x"),
        ("max_pending", "0"),
        ("max_pending", "many"),
        ("history", "1.5"),
        ("processing_timeout", "0"),
        ("processing_timeout", "1h"),
        ("warm_wait", "-1"),
        ("yield_after", "nan"),
        ("session_timeout", "inf"),
    ],
)
def test_the_error_for_an_invalid_option_has_one_line_with_its_name_and_value_and_remedy(
    option: str, value: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        _read(**{option: value})
    line = str(refused.value)
    assert line.startswith(f"[tx] {option} = {value!r} cannot be used. It must be ")
    assert f"AIRFLOW__TX__{option.upper()}" in line
    assert repr(OPTIONS[option]["default"]) in line
    assert "\n" not in line


def test_options_are_read_from_the_configuration_and_the_environment_of_airflow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIRFLOW__TX__MAX_PENDING", "7")
    settings = Settings.load()
    assert settings.max_pending == 7
    assert settings.root == "/airflow_tx"


def test_settings_are_cached_until_the_environment_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__TX__HISTORY", "7")
    seven = Settings.load()
    assert Settings.load() is seven
    monkeypatch.setenv("AIRFLOW__TX__HISTORY", "8")
    assert (seven.history, Settings.load().history) == (7, 8)
