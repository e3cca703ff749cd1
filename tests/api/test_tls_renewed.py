"""A certificate is renewed while the server runs: new connections get the new one, and nobody is cut off."""

from __future__ import annotations

import logging
import shutil
import ssl
from pathlib import Path

import pytest

from holdfast.http.tls import Certificate
from tests.http.conversation import Conversation
from tests.http.histories import request
from tests.support import callers
from tests.support.checks import wait_until
from tests.support.reverse_proxies import make_certificate
from tests.support.server import serving


def pair(folder: Path) -> Path:
    """Make a certificate and its key in a new folder: `made.pem` and `key.pem`."""
    folder.mkdir()
    make_certificate(folder)
    return folder


def put(source: Path, target: Path) -> None:
    """Put a pair in the place of another, each file in one step."""
    for name in ("made.pem", "key.pem"):
        shutil.copy2(source / name, target / f"{name}.new")
        (target / f"{name}.new").replace(target / name)


def presented(certificate: Certificate) -> bytes | None:
    """Shake hands in memory, and return the certificate that is shown."""
    client_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_tls.check_hostname, client_tls.verify_mode = False, ssl.CERT_NONE
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_tls.wrap_bio(to_client, to_server)
    server = certificate.context.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(5):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return client.getpeercert(binary_form=True)


def as_der(folder: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert((folder / "made.pem").read_text())


def test_a_new_pair_is_used_once_it_lies_still(tmp_path: Path) -> None:
    """A pair that is there at two looks is used; at the first one somebody may still be writing."""
    live, new = pair(tmp_path / "live"), pair(tmp_path / "new")
    first, second = as_der(live), as_der(new)
    certificate = Certificate(live / "made.pem", live / "key.pem")
    certificate.tick()
    assert presented(certificate) == first
    put(new, live)
    certificate.tick()
    assert presented(certificate) == first
    certificate.tick()
    assert presented(certificate) == second


def test_links_are_followed(tmp_path: Path) -> None:
    """A link that leads to another pair is another pair: so programs that renew certificates keep them."""
    old, new = pair(tmp_path / "old"), pair(tmp_path / "new")
    (tmp_path / "live").symlink_to(old)
    certificate = Certificate(tmp_path / "live" / "made.pem", tmp_path / "live" / "key.pem")
    (tmp_path / "next").symlink_to(new)
    (tmp_path / "next").replace(tmp_path / "live")
    certificate.tick()
    certificate.tick()
    assert presented(certificate) == as_der(new)


def test_a_broken_pair_is_said_once_and_the_old_one_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A new certificate whose key is not there yet is logged once. The old pair stays until both fit."""
    caplog.set_level(logging.INFO, logger="holdfast.server")
    live, new = pair(tmp_path / "live"), pair(tmp_path / "new")
    first, second = as_der(live), as_der(new)
    certificate = Certificate(live / "made.pem", live / "key.pem")
    shutil.copy2(new / "made.pem", live / "made.pem")
    for _ in range(5):
        certificate.tick()
    assert presented(certificate) == first
    (live / "key.pem").unlink()
    for _ in range(5):
        certificate.tick()
    assert presented(certificate) == first
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(said) == 2 and "do not belong together" in said[0] and "No such file" in said[1], said
    shutil.copy2(new / "key.pem", live / "key.pem")
    certificate.tick()
    certificate.tick()
    assert presented(certificate) == second


def test_a_running_server_takes_a_renewed_certificate(tmp_path: Path) -> None:
    """Without a restart a new connection gets the new certificate, and an open one goes on."""
    live, new = pair(tmp_path / "live"), pair(tmp_path / "new")
    settings: dict[str, object] = {
        "tls_cert": live / "made.pem",
        "tls_key": live / "key.pem",
        "log_format": "human",
    }
    old_trust, new_trust = (ssl.create_default_context(cafile=str(each / "made.pem")) for each in (live, new))
    asked = request("GET", "/locks", token=callers.ALICE)
    with serving(tmp_path / "data", settings=settings, tokens=callers.TOKENS) as server:
        with Conversation(server, tls=old_trust) as before:
            before.send(asked).read_answers(1)
            put(new, live)
            wait_until(lambda: "a new certificate was read from" in server.log)
            with Conversation(server, tls=new_trust) as after:
                assert after.send(asked).read_answers(1)[0].status == 200
            assert before.send(asked).read_answers(2)[1].status == 200
        with pytest.raises(ssl.SSLCertVerificationError), Conversation(server, tls=old_trust):
            pass
