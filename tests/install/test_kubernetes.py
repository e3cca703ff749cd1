"""The manifests for Kubernetes: fields that exist, parts that fit together, and settings that the program has.

No cluster is needed. `kubectl`, where it is installed, reads each object into its own types and writes it again: a
field that it does not know is gone then.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from holdfast import __version__
from holdfast.config import NAMES, TABLE, Settings, load
from holdfast.server.components import OPERATIONS
from tests.support import callers
from tests.support.api import Api
from tests.support.pages import ROOT, blocks_of
from tests.support.reverse_proxies import make_certificate
from tests.support.server import serving

FOLDER = ROOT / "deploy" / "kubernetes"
FILES = ("one-node.yaml", "three-nodes.yaml")
BACKUP = "backup.yaml"
PAGE = ROOT / "docs" / "guide" / "kubernetes.md"
USER = 10001


def _objects(file: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / file).read_text(encoding="utf-8")))


def _of(file: str, kind: str, name: str = "holdfast") -> dict[str, Any]:
    (found,) = [each for each in _objects(file) if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def _template(file: str) -> dict[str, Any]:
    is_server = file in FILES
    spec = _of(file, "StatefulSet")["spec"] if is_server else _of(file, "CronJob", "holdfast-backup")["spec"]
    template: dict[str, Any] = spec["template"] if is_server else spec["jobTemplate"]["spec"]["template"]
    return template


def _pod(file: str) -> dict[str, Any]:
    pod: dict[str, Any] = _template(file)["spec"]
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


def test_every_manifest_is_tested() -> None:
    """The folder has the manifests below, and no other."""
    assert {path.name for path in FOLDER.iterdir()} == {*FILES, BACKUP}


@pytest.mark.parametrize("file", [*FILES, BACKUP])
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


def _lost(written: object, read: object, path: str) -> Any:  # noqa: ANN401 - yields texts
    """Yield each place where something that was written is not what was read."""
    if isinstance(written, dict) and isinstance(read, dict):
        for key, value in written.items():
            yield from [f"{path}.{key}"] if key not in read else _lost(value, read[key], f"{path}.{key}")
    elif isinstance(written, list) and isinstance(read, list) and len(written) == len(read):
        for number, value in enumerate(written):
            yield from _lost(value, read[number], f"{path}[{number}]")
    elif written != read:
        yield f"{path}: {written!r} is {read!r}"


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


@pytest.mark.parametrize("file", [*FILES, BACKUP])
def test_every_file_that_is_named_is_mounted(file: str) -> None:
    """Each path in a variable is in a volume that is there; secrets are for the server alone, and read-only."""
    mounts = {each["mountPath"]: each for each in _container(file)["volumeMounts"]}
    named = [value for name, value in _environment(file).items() if value.startswith("/")]
    assert len(named) >= 3
    for path in named:
        assert any(f"{path}/".startswith(f"{mount}/") for mount in mounts), path
    server = [each for each in _objects(file) if each["kind"] == "StatefulSet"]
    claims = [claim["metadata"]["name"] for each in server for claim in each["spec"].get("volumeClaimTemplates", [])]
    volumes = {each["name"]: each for each in _pod(file)["volumes"]}
    assert {each["name"] for each in mounts.values()} == {*volumes, *claims}
    for volume in volumes.values():
        if "secret" in volume:
            assert volume["secret"]["defaultMode"] == 0o400
            (mount,) = [each for each in mounts.values() if each["name"] == volume["name"]]
            assert mount["readOnly"] is True
    # A mounted secret is a link, and the program follows none where it reads tokens and secrets.
    for name in ("HOLDFAST_TOKENS_FILE", "HOLDFAST_STORE_SECRET_FILE", "HOLDFAST_TOKEN_FILE"):
        assert "/..data/" in _environment(file).get(name, "/..data/")


@pytest.mark.parametrize("file", [*FILES, BACKUP])
def test_pods_have_minimal_privileges(file: str) -> None:
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
def test_probes_need_no_token(file: str) -> None:
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


def test_the_page_says_how_long_a_start_may_take() -> None:
    """The guide has the minutes of both startup probes."""
    probes = [_container(file)["startupProbe"] for file in FILES]
    one, three = (probe["periodSeconds"] * probe["failureThreshold"] // 60 for probe in probes)
    text = PAGE.read_text(encoding="utf-8")
    assert f"has {one} minutes. One of three nodes answers before it reads anything: it has {three} minute |" in text


# --- The page ---------------------------------------------------------------------------------------------------------

KUBECTL = """#!/bin/sh
# Makes a folder in place of a secret, and fails as kubectl does for a file that is not there.
set -eu
[ "$1 $2 $3" = "create secret generic" ]
folder=$SECRETS/$4
shift 4
mkdir -p "$folder"
for option in "$@"; do
    pair=${option#--from-file=}
    cp "${pair#*=}" "$folder/$(basename "${pair%%=*}")"
done
"""
MAKES = "kubectl create secret"
FOR_EITHER = 2
"""So many blocks come before: a certificate, and access tokens."""


def _made_secrets(file: str, folder: Path) -> dict[str, Path]:
    """Run the blocks of the page that make the secrets for this file; return them, as folders with files."""
    blocks = [block for block in blocks_of(PAGE) if block.language == "sh"]
    making = [number for number, block in enumerate(blocks) if MAKES in block.text]
    assert len(making) == len(FILES)
    chosen = [*blocks[making[0] - FOR_EITHER : making[0]], blocks[making[FILES.index(file)]]]
    (folder / "bin").mkdir()
    (folder / "bin" / "kubectl").write_text(KUBECTL)
    (folder / "bin" / "kubectl").chmod(0o755)
    env = {
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "SECRETS": str(folder / "secrets"),
        "PASSWORD_OF_THE_ROLE": "a password",
    }
    script = "\n".join(block.text for block in chosen)
    done = subprocess.run(["sh", "-eu"], input=script, text=True, capture_output=True, cwd=folder, env=env, check=False)
    assert done.returncode == 0, done.stderr
    for name in ("tls.key", "ca.key", "tokens", "ops.token", "backup.token"):
        assert (folder / name).stat().st_mode & 0o077 == 0, f"{name} is open to others"
    return {path.name: path for path in (folder / "secrets").iterdir()}


@pytest.mark.parametrize("file", FILES)
def test_secrets_contain_the_mounted_keys(file: str, tmp_path: Path) -> None:
    """The commands of the page for one node, and those for three, make each key that is read, and no other."""
    made = {name: {path.name for path in folder.iterdir()} for name, folder in _made_secrets(file, tmp_path).items()}
    wanted: dict[str, set[str]] = {}
    for manifest in (file, BACKUP):
        of_volume = {
            each["name"]: each["secret"]["secretName"] for each in _pod(manifest)["volumes"] if "secret" in each
        }
        for mount in _container(manifest)["volumeMounts"]:
            if mount["name"] in of_volume:
                read = [path for path in _environment(manifest).values() if path.startswith(f"{mount['mountPath']}/")]
                wanted.setdefault(of_volume[mount["name"]], set()).update(Path(path).name for path in read)
        for each in _container(manifest)["env"]:
            if secret := each.get("valueFrom", {}).get("secretKeyRef"):
                wanted.setdefault(secret["name"], set()).add(secret["key"])
    assert made == wanted


def test_the_certificate_has_every_name(tmp_path: Path) -> None:
    """Each name by which the page and the manifests call a server is in the certificate that the page makes."""
    secrets = _made_secrets(FILES[1], tmp_path)
    text = PAGE.read_text(encoding="utf-8").replace("NAMESPACE", "default")
    called = {found.rstrip(",") for found in re.findall(r"https://([a-z0-9.-]+):7420", text)}
    called |= {urlsplit(_settings(file).public_url).hostname or "" for file in FILES}
    called |= {urlsplit(_settings(FILES[1]).advertise).hostname or ""}
    called |= {urlsplit(_environment(BACKUP)["HOLDFAST_URL"]).hostname or ""}
    assert {"holdfast", "localhost", "holdfast.default.svc", "holdfast-2.holdfast-nodes.default.svc"} <= called
    listening = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    listening.load_cert_chain(secrets["holdfast-tls"] / "tls.crt", secrets["holdfast-tls"] / "tls.key")
    trusting = ssl.create_default_context(cafile=str(secrets["holdfast-tls"] / "ca.crt"))
    trusting.verify_flags |= ssl.VERIFY_X509_STRICT
    for name in sorted(called):
        _shake_hands(listening, trusting, name)
    with pytest.raises(ssl.SSLCertVerificationError):
        _shake_hands(listening, trusting, "holdfast-0.holdfast-nodes")


def _shake_hands(listening: ssl.SSLContext, trusting: ssl.SSLContext, name: str) -> None:
    """Let a client and a server meet in memory. Raises if the client does not believe the name."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting.wrap_bio(to_client, to_server, server_hostname=name)
    server = listening.wrap_bio(to_server, to_client, server_side=True)
    is_done = False
    for side in (client, server) * 4:
        try:
            side.do_handshake()
            is_done = is_done or side is client
        except ssl.SSLWantReadError:
            continue
    assert is_done


def test_the_backup_is_no_server() -> None:
    """No service and no budget of the server selects its pods, it has the server's image, and asks the service."""
    labels = _template(BACKUP)["metadata"]["labels"]
    for file in FILES:
        services = [each for each in _objects(file) if each["kind"] == "Service"]
        assert not any(each["spec"]["selector"].items() <= labels.items() for each in services)
        assert _container(BACKUP)["image"] == _container(file)["image"]
        assert _environment(BACKUP)["HOLDFAST_URL"] == _settings(file).public_url
    (claim,) = [
        each["persistentVolumeClaim"]["claimName"]
        for each in _pod(BACKUP)["volumes"]
        if "emptyDir" not in each and "secret" not in each
    ]
    assert _of(BACKUP, "PersistentVolumeClaim", "holdfast-backup")["metadata"]["name"] == claim


def test_the_backup_makes_one_and_keeps_two_weeks(tmp_path: Path) -> None:
    """With the secrets of the page, a server of one node and the command of the backup's pod: there is a backup that is
    whole, one of the same day is replaced, one of 15 days ago is gone, one of last week is not.
    """
    secrets = _made_secrets(FILES[0], tmp_path)
    backups = tmp_path / "volume"
    backups.mkdir()
    # As a cluster gives them: a group may write to the volume, and what is in a secret is a link.
    backups.chmod(0o2775)
    (tmp_path / "linked.crt").symlink_to(secrets["holdfast-backup"] / "ca.crt")
    for name, days in (("old.backup", 15), ("week.backup", 7)):
        (backups / name).touch()
        os.utime(backups / name, (time.time() - days * 86_400,) * 2)
    given = {name: value for name, value in _environment(FILES[0]).items() if name.startswith("HOLDFAST_")}
    of_server = {
        "HOLDFAST_TLS_CERT": str(secrets["holdfast-tls"] / "tls.crt"),
        "HOLDFAST_TLS_KEY": str(secrets["holdfast-tls"] / "tls.key"),
        "HOLDFAST_TOKENS_FILE": str(secrets["holdfast-tokens"] / "tokens"),
    }
    with serving(tmp_path / "data", env={**given, **of_server}) as server:
        env = {
            "PATH": f"{Path(sys.prefix) / 'bin'}:{os.environ['PATH']}",
            "HOME": str(tmp_path),
            "FOLDER": str(backups),
            # The certificate has no name for an address: this machine is `localhost` in it.
            "HOLDFAST_URL": f"https://localhost:{server.port}",
            "HOLDFAST_CA_FILE": str(tmp_path / "linked.crt"),
            "HOLDFAST_TOKEN_FILE": str(secrets["holdfast-backup"] / "token"),
        }
        assert set(_environment(BACKUP)) == set(env) - {"PATH", "HOME"}
        command = [*_container(BACKUP)["command"], *_container(BACKUP)["args"]]
        for _ in range(2):
            done = subprocess.run(command, env=env, text=True, capture_output=True, check=False)
            assert done.returncode == 0, done.stderr
        assert server.terminate() == 0
        assert subprocess.run(command, env=env, capture_output=True, check=False).returncode != 0
    (name,) = {path.name for path in backups.iterdir()} - {"week.backup"}
    assert re.fullmatch(r"\d{4}-\d\d-\d\d\.backup", name)
    complete = [sys.executable, "-m", "holdfast", "doctor", "--data", str(backups / name)]
    assert subprocess.run(complete, env=env, capture_output=True, check=False).returncode == 0


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
