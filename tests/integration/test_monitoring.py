"""What `docker/monitoring` holds is loaded by the programs that it is for, where they are on this machine."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_tx.base import compat
from airflow_tx.base.compat import MetricKind
from airflow_tx.ledger.api import Paths
from airflow_tx.testing.deadline import run_command
from airflow_tx.testing.eventually import eventually
from airflow_tx.testing.servers.server import free_ports
from airflow_tx.transaction.metrics import Metric

MONITORING = Path(__file__).resolve().parents[2] / "docker/monitoring"
DASHBOARD = json.loads((MONITORING / "dashboard.json").read_text())
NAME = re.compile(r"airflow_tx_[a-z_]+?(?=_bucket|\b)")
needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="needs Prometheus (Debian: prometheus)")
needs_exporter = pytest.mark.skipif(
    shutil.which("statsd_exporter") is None,
    reason="needs statsd_exporter (go install github.com/prometheus/statsd_exporter@v0.28.0)",
)
needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="needs Prometheus (Debian: prometheus)"
)

SALES = Paths("/tx", "sales")

BLOCKED = """
rule_files: [{rules}]
tests:
  - interval: 1m
    input_series:
      - {{series: 'airflow_tx_blocked{{root="/tx",topology="a"}}', values: "0 1 1 1 0 0"}}
      - {{series: 'airflow_tx_blocked{{root="/tx",topology="b"}}', values: "0x6"}}
    alert_rule_test:
      - {{eval_time: 1m, alertname: TransactionBlocked, exp_alerts: []}}
      - eval_time: 3m
        alertname: TransactionBlocked
        exp_alerts:
          - exp_labels: {{root: /tx, topology: a, severity: critical}}
            exp_annotations:
              summary: "a is blocked: nothing commits until a person acts"
              description: "Why, and what to do: airflow tx show a --root /tx"
      - {{eval_time: 5m, alertname: TransactionBlocked, exp_alerts: []}}
"""


def promtool(*arguments: str | Path) -> str:
    done = run_command(["promtool", *map(str, arguments)], capture_output=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def expressions() -> list[str]:
    """What the panels of the dashboard ask for, without the variables of Grafana."""
    found = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    return [each.replace("$__rate_interval", "1m").replace("$topology", ".*") for each in found]


@needs_promtool
def test_prometheus_accepts_the_configuration_and_its_rules() -> None:
    assert "7 rules found" in promtool("check", "config", MONITORING / "prometheus.yml")


@needs_promtool
def test_a_blocked_topology_fires_an_alert_until_it_is_no_longer_blocked(tmp_path: Path) -> None:
    (tmp_path / "test.yml").write_text(BLOCKED.format(rules=MONITORING / "alert-rules.yml"))
    promtool("test", "rules", tmp_path / "test.yml")


@needs_promtool
def test_prometheus_parses_every_query_of_the_dashboard(tmp_path: Path) -> None:
    rules = [{"record": f"panel:{number}", "expr": each} for number, each in enumerate(expressions())]
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool("check", "rules", tmp_path / "rules.yml")


def test_the_dashboard_shows_all_metrics_of_the_package_and_no_other_metrics() -> None:
    shown = {name for each in expressions() for name in NAME.findall(each)}
    assert shown == {f"airflow_tx_{each.suffix}" for each in Metric}
    rules = (MONITORING / "alert-rules.yml").read_text()
    assert set(re.findall(r"airflow_tx_\w+", rules)) <= shown


def test_the_panels_of_the_dashboard_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        own = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not own & taken
        assert at["x"] + at["w"] <= 24
        taken |= own
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)


def test_grafana_accepts_every_field_of_the_dashboard(monkeypatch: pytest.MonkeyPatch) -> None:
    # It has no dependencies: nothing beside it in that folder can hide another package.
    monkeypatch.syspath_prepend(Path(sys.prefix) / "grafana")
    models: Any = pytest.importorskip("grafana_foundation_sdk.models.dashboard")
    encoder: Any = pytest.importorskip("grafana_foundation_sdk.cog.encoder")
    made = models.Dashboard.from_json(DASHBOARD)
    again = json.loads(encoder.JSONEncoder().encode(made))
    assert [panel["title"] for panel in again["panels"]] == [panel["title"] for panel in DASHBOARD["panels"]]
    assert set(again) >= set(DASHBOARD)


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The StatsD exporter with our mapping; Airflow's metrics go to it. Where it answers Prometheus."""
    web, udp = free_ports(2)
    command = ["statsd_exporter", f"--statsd.mapping-config={MONITORING / 'statsd-mapping.yml'}"]
    listen = [f"--web.listen-address=127.0.0.1:{web}", f"--statsd.listen-udp=127.0.0.1:{udp}", "--statsd.listen-tcp="]
    options = {"STATSD_ON": "True", "STATSD_HOST": "127.0.0.1", "STATSD_PORT": str(udp), "STATSD_PREFIX": "airflow"}
    for option, value in {**options, "STATSD_INFLUXDB_ENABLED": "True"}.items():
        monkeypatch.setenv(f"AIRFLOW__METRICS__{option}", value)
    with subprocess.Popen([*command, *listen], stderr=subprocess.DEVNULL) as process:
        url = f"http://127.0.0.1:{web}/metrics"
        eventually(lambda: answer(url), 240, "the exporter answers")
        compat.prepare_metrics()
        yield url
        monkeypatch.undo()
        compat.prepare_metrics()
        process.terminate()


def answer(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=5) as found:
            return str(found.read().decode())
    except OSError:
        return ""


@needs_exporter
def test_the_exporter_labels_every_metric_with_its_topology(exporter: str) -> None:
    for each in Metric:
        each.send(Paths("/tx", "sales.eu"), 2.0)
    marks = {MetricKind.COUNTER: "", MetricKind.GAUGE: "", MetricKind.TIMER: "_sum"}
    wanted = {f'airflow_tx_{each.suffix}{marks[each.kind]}{{root="/tx",topology="sales.eu"}} 2' for each in Metric}
    eventually(lambda: wanted <= set(answer(exporter).splitlines()), 240, "all are there")
    assert "sales__eu" not in answer(exporter)


@pytest.fixture
def prometheus(exporter: str, tmp_path: Path) -> Iterator[str]:
    """Prometheus as our example configures it, but for where the exporter is, and faster. Where its alerts are."""
    (web,) = free_ports(1)
    config = (MONITORING / "prometheus.yml").read_text()
    for old, new in (
        ("statsd-exporter:9102", exporter.removeprefix("http://").removesuffix("/metrics")),
        ("alert-rules.yml", str(MONITORING / "alert-rules.yml")),
        ("15s", "1s\n  evaluation_interval: 1s"),
    ):
        assert old in config
        config = config.replace(old, new)
    (tmp_path / "prometheus.yml").write_text(config)
    command = ["prometheus", f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data"]
    with subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{web}"], stderr=subprocess.DEVNULL) as process:
        url = f"http://127.0.0.1:{web}"
        eventually(lambda: "Ready" in answer(f"{url}/-/ready"), 240, "Prometheus is ready")
        yield f"{url}/api/v1"
        process.terminate()


@pytest.mark.long
@needs_exporter
@needs_prometheus
def test_an_alert_fires_and_ends_according_to_the_sent_metrics(prometheus: str) -> None:
    def alerts() -> dict[tuple[str, str], str]:
        found = json.loads(answer(f"{prometheus}/alerts") or '{"data": {"alerts": []}}')["data"]["alerts"]
        return {(each["labels"]["alertname"], each["labels"]["topology"]): each["state"] for each in found}

    def is_known() -> bool:
        return '"topology":"sales"' in answer(f"{prometheus}/query?query=airflow_tx_failed")

    Metric.BLOCKED.send(SALES, 1)
    Metric.BLOCKED.send(Paths("/tx", "other"), 0)
    Metric.FAILED.send(SALES)
    eventually(is_known, 240, "Prometheus has the first failure")
    # A counter that is new has not increased.
    for _ in range(9):
        Metric.FAILED.send(SALES)
    failing, blocked = ("TransactionsFail", "sales"), ("TransactionBlocked", "sales")
    eventually(
        lambda: alerts().get(failing) == "firing", 240, "nine failures are an alert", explain=lambda: str(alerts())
    )
    eventually(
        lambda: alerts().get(blocked) == "firing",
        240,
        "blocked for a minute is an alert",
        explain=lambda: str(alerts()),
    )
    Metric.BLOCKED.send(SALES, 0)
    eventually(lambda: set(alerts()) == {failing}, 240, "the alert of the block ends", explain=lambda: str(alerts()))
