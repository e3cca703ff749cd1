"""The manifests for Kubernetes: fields that exist, parts that fit together, and settings that the program has.

No cluster is needed. `kubectl`, where it is installed, reads each object into its own types and writes it again: a
field that it does not know is gone then.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast import __version__
from holdfast.server.operations.table import OPERATIONS
from holdfast.settings import NAMES, TABLE, Settings, load
from tests.support import callers
from tests.support.api import Api
from tests.support.fronts import make_certificate
from tests.support.pages import ROOT
from tests.support.server import serving

FOLDER = ROOT / "deploy" / "kubernetes"
FILES = ("one-node.yaml", "three-nodes.yaml")
USER = 10001


def _objects(file: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / file).read_text(encoding="utf-8")))


def _of(file: str, kind: str, name: str = "holdfast") -> dict[str, Any]:
    (found,) = [each for each in _objects(file) if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def _pod(file: str) -> dict[str, Any]:
    pod: dict[str, Any] = _of(file, "StatefulSet")["spec"]["template"]["spec"]
    return pod


def _container(file: str) -> dict[str, Any]:
    (container,) = _pod(file)["containers"]
    found: dict[str, Any] = container
    return found


def _environment(file: str) -> dict[str, str]:
    """What the container gets, as Kubernetes would fill it in."""
    values = {"POD_NAME": "holdfast-0", "POD_NAMESPACE": "default"}
    filled: dict[str, str] = {}
    for each in _container(file)["env"]:
        value = each.get("value", values.get(each["name"], "from-a-secret"))
        filled[each["name"]] = re.sub(r"\$\((\w+)\)", lambda found: filled[found[1]], value)
    return filled


def _settings(file: str) -> Settings:
    known = {name: value for name, value in _environment(file).items() if name.startswith("HOLDFAST_")}
    return load(overrides={}, environment=known, file=None).settings


@pytest.mark.parametrize("file", FILES)
def test_kubectl_knows_every_field(file: str, tmp_path: Path) -> None:
    """What kubectl reads and writes again has all that the file says: no field is misspelt or in a wrong place."""
    if shutil.which("kubectl") is None:
        pytest.skip("there is no kubectl here")
    for number, written in enumerate(_objects(file)):
        (tmp_path / f"{number}.json").write_text(json.dumps(written))
        command = ["kubectl", "label", "--local", "--dry-run=client", "-o", "json", "-f", f"{tmp_path}/{number}.json"]
        env = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin:/usr/local/bin"}
        done = subprocess.run([*command, "tested=yes"], capture_output=True, text=True, check=False, env=env)
        assert done.returncode == 0, done.stderr
        assert list(_lost(written, json.loads(done.stdout), written["kind"])) == []


def _lost(written: object, read: object, place: str) -> Any:  # noqa: ANN401 - yields texts
    """Yield each place where something that was written is not what was read."""
    if isinstance(written, dict) and isinstance(read, dict):
        for key, value in written.items():
            yield from [f"{place}.{key}"] if key not in read else _lost(value, read[key], f"{place}.{key}")
    elif isinstance(written, list) and isinstance(read, list) and len(written) == len(read):
        for number, value in enumerate(written):
            yield from _lost(value, read[number], f"{place}[{number}]")
    elif written != read:
        yield f"{place}: {written!r} is {read!r}"


def test_the_judge_of_fields_sees_what_is_lost() -> None:
    """A field that did not come back, or came back as another, is found."""
    assert list(_lost({"a": [{"b": 1}]}, {"a": [{}]}, "x")) == ["x.a[0].b"]
    assert list(_lost({"a": 1}, {"a": 2, "c": 3}, "x")) == ["x.a: 1 is 2"]
    assert list(_lost({"a": {"b": [1]}}, {"a": {"b": [1]}, "c": 1}, "x")) == []


@pytest.mark.parametrize("file", FILES)
def test_the_settings_are_settings(file: str) -> None:
    """Each variable is known to the program and can be read, and all ports are the one that it listens on."""
    variables = {row.variable for row in TABLE} | {"POD_NAME", "POD_NAMESPACE", "PGPASSWORD"}
    assert {each["name"] for each in _container(file)["env"]} <= variables
    settings = _settings(file)
    port = int(settings.listen.rpartition(":")[2])
    assert [each["containerPort"] for each in _container(file)["ports"]] == [port]
    services = [each for each in _objects(file) if each["kind"] == "Service"]
    assert [entry["port"] for each in services for entry in each["spec"]["ports"]] == [port] * len(services)
    assert settings.public_url == f"https://holdfast:{port}"
    assert _pod(file)["terminationGracePeriodSeconds"] > settings.stop_timeout_seconds
    image, _, tag = _container(file)["image"].rpartition(":")
    assert image.endswith("/holdfast") and __version__.startswith(tag)


@pytest.mark.parametrize("file", FILES)
def test_every_file_that_is_named_is_mounted(file: str) -> None:
    """Each path in a variable is in a volume that is there; secrets are for the server alone, and read-only."""
    mounts = {each["mountPath"]: each for each in _container(file)["volumeMounts"]}
    named = [value for name, value in _environment(file).items() if value.startswith("/")]
    assert len(named) >= 4
    for path in named:
        assert any(path.startswith(f"{mount}/") for mount in mounts), path
    claims = [each["metadata"]["name"] for each in _of(file, "StatefulSet")["spec"].get("volumeClaimTemplates", [])]
    volumes = {each["name"]: each for each in _pod(file)["volumes"]}
    assert {each["name"] for each in mounts.values()} == {*volumes, *claims}
    for volume in volumes.values():
        if "secret" in volume:
            assert volume["secret"]["defaultMode"] == 0o400
            (mount,) = [each for each in mounts.values() if each["name"] == volume["name"]]
            assert mount["readOnly"] is True
    # A mounted secret is a link, and the program follows none where it reads tokens and secrets.
    for name in ("HOLDFAST_TOKENS_FILE", "HOLDFAST_STORE_SECRET_FILE"):
        assert "/..data/" in _environment(file).get(name, "/..data/")


@pytest.mark.parametrize("file", FILES)
def test_nothing_is_allowed_that_is_not_needed(file: str) -> None:
    """Not root, no capabilities, no way to more rights, nothing to write to but volumes, no token of the cluster."""
    pod, container = _pod(file), _container(file)
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["automountServiceAccountToken"] is False and pod["enableServiceLinks"] is False
    assert container["resources"]["limits"]["memory"]
    dockerfile = (ROOT / "examples" / "containers" / "Dockerfile").read_text(encoding="utf-8")
    assert f"--uid {USER} " in dockerfile and f"USER {USER}\n" in dockerfile


@pytest.mark.parametrize("file", FILES)
def test_probes_ask_what_anybody_may_ask(file: str) -> None:
    """Probes name routes that need no access token and answer to any name; life is `/healthz`, readiness `/readyz`."""
    rows = {row.path: row for row in OPERATIONS if row.method == "GET"}
    asked = {}
    for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
        get = _container(file)[kind]["httpGet"]
        asked[kind] = get["path"]
        assert (get["port"], get["scheme"]) == (_container(file)["ports"][0]["name"], "HTTPS")
        assert rows[get["path"]].scope is None and rows[get["path"]].any_host
    assert asked == {"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"}


@pytest.mark.parametrize("file", FILES)
def test_selectors_find_the_pods(file: str) -> None:
    """Services, the budget and the spread select by labels that the pods have."""
    template = _of(file, "StatefulSet")["spec"]["template"]
    labels = template["metadata"]["labels"]
    selectors = [_of(file, "StatefulSet")["spec"]["selector"]["matchLabels"]]
    selectors += [each["spec"]["selector"] for each in _objects(file) if each["kind"] == "Service"]
    selectors += [
        each["spec"]["selector"]["matchLabels"] for each in _objects(file) if each["kind"] == "PodDisruptionBudget"
    ]
    selectors += [
        each["labelSelector"]["matchLabels"] for each in template["spec"].get("topologySpreadConstraints", [])
    ]
    assert all(selector.items() <= labels.items() for selector in selectors)
    names = [each["metadata"]["name"] for each in _objects(file) if each["kind"] == "Service"]
    assert _of(file, "StatefulSet")["spec"]["serviceName"] in names


def test_one_node_is_one_and_keeps_its_data() -> None:
    """One pod, on a disk of its own, in a directory below the volume: that itself belongs to root."""
    spec = _of(FILES[0], "StatefulSet")["spec"]
    assert spec["replicas"] == 1
    (claim,) = spec["volumeClaimTemplates"]
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
    settings = _settings(FILES[0])
    (mount,) = [each for each in _container(FILES[0])["volumeMounts"] if each["name"] == claim["metadata"]["name"]]
    assert settings.data.parent == Path(mount["mountPath"]) and not settings.store


def test_three_nodes_find_each_other() -> None:
    """Each is called by its pod's own name below the headless service, also before it is ready; a takeover, of
    `takeover_seconds`, is over before readiness is lost; and a drain takes one at a time.
    """
    file = FILES[1]
    spec, settings = _of(file, "StatefulSet")["spec"], _settings(file)
    assert spec["replicas"] == 3
    nodes = _of(file, "Service", spec["serviceName"])["spec"]
    assert nodes["clusterIP"] == "None" and nodes["publishNotReadyAddresses"] is True
    assert settings.advertise == f"https://holdfast-0.{spec['serviceName']}.default.svc:7420"
    assert settings.node_name == "holdfast-0"
    assert settings.store.startswith("postgresql://") and ":" not in settings.store.split("@")[0].removeprefix(
        "postgresql://"
    ), "the password is a secret"
    probe = _container(file)["readinessProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] > settings.takeover_seconds + 1
    assert _of(file, "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1
    assert set(NAMES) >= {"store_secret_file", "link_ca_file"}


def test_a_server_starts_with_the_settings_of_one_node(tmp_path: Path) -> None:
    """The variables of the manifest, with other folders and another port, start a server that its probes find well."""
    certificate = make_certificate(tmp_path)
    (tmp_path / "..data").mkdir()
    (tmp_path / "..data" / "tokens").write_text(callers.TOKENS.replace(",", "\n"))
    (tmp_path / "..data" / "tokens").chmod(0o400)
    replaced = {
        "HOLDFAST_TLS_CERT": str(certificate),
        "HOLDFAST_TLS_KEY": str(certificate),
        "HOLDFAST_TOKENS_FILE": str(tmp_path / "..data" / "tokens"),
    }
    given = {name: value for name, value in _environment(FILES[0]).items() if name.startswith("HOLDFAST_")}
    with serving(tmp_path / "data", env={**given, **replaced}) as server:
        assert server.url.startswith("https://")
        health = ROOT / "examples" / "containers" / "health.py"
        env = {"HOLDFAST_LISTEN": f"0.0.0.0:{server.port}", "HOLDFAST_TLS_CERT": "yes"}
        assert subprocess.run([shutil.which("python3") or "python3", health], env=env, check=False).returncode == 0
        assert server.terminate() == 0
        gone = subprocess.run([shutil.which("python3") or "python3", health], env=env, capture_output=True, check=False)
        assert gone.returncode == 1 and b"refused" in gone.stderr


def test_the_health_check_of_the_image_sees_plain_http(tmp_path: Path) -> None:
    """Without a certificate the same check asks in the clear."""
    health = ROOT / "examples" / "containers" / "health.py"
    with serving(tmp_path / "data", tokens=callers.TOKENS) as server:
        assert Api.of(server, None).get("/readyz").status == 200
        env = {"HOLDFAST_LISTEN": f"127.0.0.1:{server.port}"}
        assert subprocess.run([shutil.which("python3") or "python3", health], env=env, check=False).returncode == 0
