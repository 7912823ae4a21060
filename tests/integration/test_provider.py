"""The provider as Airflow's own commands show it."""

from __future__ import annotations

from importlib.metadata import version

from airflow_tx.provider_info import get_provider_info
from tests.integration.commands import Commands

PACKAGE = "airflow-provider-tx"


def test_airflow_lists_the_provider_with_its_version(commands: Commands) -> None:
    (own,) = [each for each in commands.json("providers", "list", root="/unused") if each["package_name"] == PACKAGE]
    assert own["version"] == version(PACKAGE)


def test_airflow_shows_the_description_of_the_provider(commands: Commands) -> None:
    (own,) = commands.json("providers", "get", PACKAGE, root="/unused")
    assert own["Version"] == version(PACKAGE)


def test_airflow_lists_the_link_to_a_transaction(commands: Commands) -> None:
    listed = commands.json("providers", "links", root="/unused")
    assert "airflow_tx.plugin.plugin.TransactionLink" in {each["extra_link_class_name"] for each in listed}


def test_airflow_lists_every_trigger_of_the_provider(commands: Commands) -> None:
    own = [each for each in commands.json("providers", "triggers", root="/unused") if each["package_name"] == PACKAGE]
    told = [name for each in get_provider_info()["triggers"] for name in each["python-modules"]]
    assert sorted(each["class"] for each in own) == told
