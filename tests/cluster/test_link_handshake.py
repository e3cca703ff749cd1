"""Who may have a link: nodes that know the authority's key, for the tenure that is, and nobody else at any price."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import msgspec
import pytest

from holdfast.cluster import link_leader as leaders_end
from holdfast.cluster.link_follower import Security
from holdfast.cluster.link_frames import (
    HELLO_BYTES_MAX,
    NONCE_BYTES,
    PREFIX,
    BadFrameError,
    CancelFrame,
    Decoder,
    Handshake,
    HandshakeError,
    Hello,
    Ping,
    Proof,
    RequestFrame,
    ResponseFrame,
    TermCredentials,
    ToFollower,
    ToLeader,
    framed,
)
from tests.cluster.linked_nodes import LinkedNode, nodes, run, two_nodes, until
from tests.support.reverse_proxies import make_certificate

F, L = b"f" * NONCE_BYTES, b"l" * NONCE_BYTES
CREDENTIALS = TermCredentials("authority", 7, "tenure", b"k" * 32)


# The proofs, without a socket.


def test_peers_with_the_key_authenticate_each_other() -> None:
    """N-29: both sides prove themselves over both random numbers, the leader first."""
    follower, leader = Handshake(CREDENTIALS, F), Handshake(CREDENTIALS, L)
    leader.check(follower.answer(leader.greet(follower.hello())))


@pytest.mark.parametrize("field", ["authority", "epoch", "term", "key"])
def test_nothing_may_differ(field: str) -> None:
    """N-29: another key, authority, epoch or tenure, and one side refuses before it has proved anything."""
    other = msgspec.structs.replace(CREDENTIALS, **{field: {"epoch": 8, "key": b"x" * 32}.get(field, "other")})
    follower, leader = Handshake(other, F), Handshake(CREDENTIALS, L)
    with pytest.raises(HandshakeError):
        follower.answer(leader.greet(follower.hello()))
    with pytest.raises(HandshakeError):
        leader.check(Proof(b"x" * 32))


def test_proof_is_good_for_one_link_and_one_role() -> None:
    """N-29: a proof that was heard on another link, or that of the leader itself, is no proof of a follower."""
    received = Handshake(CREDENTIALS, L).greet(Handshake(CREDENTIALS, F).hello())
    late = Handshake(CREDENTIALS, b"g" * NONCE_BYTES)
    with pytest.raises(HandshakeError):
        late.answer(received)
    leader = Handshake(CREDENTIALS, L)
    own = leader.greet(Handshake(CREDENTIALS, F).hello())
    with pytest.raises(HandshakeError):
        leader.check(Proof(own.proof))
    again = Handshake(CREDENTIALS, b"m" * NONCE_BYTES)
    again.greet(Handshake(CREDENTIALS, F).hello())
    with pytest.raises(HandshakeError):
        again.check(Handshake(CREDENTIALS, F).answer(received))


def test_random_bytes_have_their_length() -> None:
    """N-29: less than 32 random bytes are refused by either side."""
    hello = Hello("authority", 7, "tenure", b"")
    with pytest.raises(HandshakeError):
        Handshake(CREDENTIALS, L).greet(hello)


# Frames.


def test_frames_survive_any_cut() -> None:
    """N-29: however the bytes of a link are cut, the same frames come of them, and none before it is whole."""
    frames: list[ToLeader] = [Ping(), CancelFrame(1), Proof(b"x" * 300), Hello("a", 1, "t", F), Ping()]
    data = b"".join(framed(frame) for frame in frames)
    for size in (1, 2, 3, 5, 7, 100, len(data)):
        decoder = Decoder(ToLeader, HELLO_BYTES_MAX)
        found = []
        for start in range(0, len(data), size):
            decoder.put(data[start : start + size])
            while (frame := decoder.next()) is not None:
                found.append(frame)
        assert found == frames, size


def test_decoder_resumes_after_a_pause() -> None:
    """N-29: frames that were left, behind a large one, come with the next bytes, whole and in order."""
    decoder = Decoder(ToLeader, 100_000)
    large = Proof(b"x" * 50_000)
    data = framed(large) + framed(CancelFrame(1)) + framed(CancelFrame(2))
    decoder.put(data[:10])
    assert decoder.next() is None
    decoder.put(data[10:])
    assert decoder.next() == large
    decoder.put(framed(CancelFrame(3)))
    assert [decoder.next() for _ in range(4)] == [CancelFrame(1), CancelFrame(2), CancelFrame(3), None]


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff",
        (HELLO_BYTES_MAX + 1).to_bytes(4),
        b"\x00\x00\x00\x05\xdd\xff\xff\xff\xff",
        b"\x00\x00\x00\x01\xc0",
        b"\x00\x00\x00\x00",
        framed(ResponseFrame(1, 200, b"", (), None)),
        framed(CancelFrame(1)).replace(b"\x08\x01", b"\x08\xc0"),
    ],
)
def test_bad_frame_is_refused(data: bytes) -> None:
    """N-29: a length beyond the most, a length inside that lies, and what is no frame of this side end the link."""
    decoder = Decoder(ToLeader, HELLO_BYTES_MAX)
    decoder.put(data)
    with pytest.raises(BadFrameError):
        decoder.next()


# Strangers at a real port.


async def _connect_unauthenticated(node: LinkedNode, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
    writer.write(data)
    return reader, writer


async def _is_closed(reader: asyncio.StreamReader) -> bool:
    try:
        async with asyncio.timeout(10):
            while await reader.read(65_536):
                pass
    except ConnectionError:
        return True
    return True


def test_prefix_without_a_proof_gets_nothing(tmp_path: Path) -> None:
    """N-29: the prefix and then nonsense, a huge frame, a request or a wrong proof is cut off, and users are not."""

    async def test() -> None:
        async with two_nodes(tmp_path) as (leader, follower):
            leadership = leader.shelf.leadership
            hello = framed(Hello(leadership.authority, leadership.epoch, leadership.term_id, F))
            asked = framed(RequestFrame(1, b"GET", b"/", b"", {}, b"", "", "", 0, "req", False))
            for data in (
                b"\xff" * 100,
                framed(Proof(b"x" * 32)),
                asked,
                hello + asked,
                hello + framed(Proof(b"x" * 32)),
                hello + hello,
                framed(Hello(leadership.authority, leadership.epoch, "another tenure", F)),
                (2**31).to_bytes(4),
            ):
                reader, writer = await _connect_unauthenticated(leader, PREFIX + data)
                assert await _is_closed(reader), data
                writer.close()
            assert (await (await follower.call()).ask("GET", "/status")).status == 200
            assert leader.node.links == 1 and not leader.links._unauthenticated

    run(test)


def test_split_prefix_is_detected_and_http_is_served(tmp_path: Path) -> None:
    """N-29: a prefix cut anywhere is still one; what begins like it and is not, is judged as HTTP."""

    async def test() -> None:
        async with two_nodes(tmp_path) as (leader, _):
            leadership = leader.shelf.leadership
            reader, writer = await _connect_unauthenticated(leader, PREFIX[:3])
            await asyncio.sleep(0)
            writer.write(PREFIX[3:] + framed(Hello(leadership.authority, leadership.epoch, leadership.term_id, F)))
            decoder = Decoder(ToFollower, HELLO_BYTES_MAX)
            while (greeting := decoder.next()) is None:
                decoder.put(await reader.read(1_000))
            Handshake(
                TermCredentials(leadership.authority, leadership.epoch, leadership.term_id, leader.shelf.key), F
            ).answer(greeting)
            writer.close()
            caller = await leader.call()
            caller.writer.write(b"HEA")
            await caller.writer.drain()
            caller.writer.write(b"D /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            assert (await caller.read_to_end()).startswith(b"HTTP/1.1 200")
            other = await leader.call()
            other.writer.write(b"HFLINK/2\n")
            assert (await other.read_to_end()).startswith(b"HTTP/1.1 400")

    run(test)


def test_unauthenticated_links_are_few_and_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """N-29: of links that prove nothing the eldest gives way, all end in time, and each counts as a stranger's."""
    monkeypatch.setattr(leaders_end, "UNAUTHENTICATED_MAX", 4)

    async def test() -> None:
        async with two_nodes(tmp_path) as (leader, _):
            before = len(leader.manager.connections)
            unauthenticated = [await _connect_unauthenticated(leader, PREFIX) for _ in range(6)]
            assert await _is_closed(unauthenticated[0][0]) and await _is_closed(unauthenticated[1][0])
            await until(lambda: len(leader.links._unauthenticated) == 4)
            assert len(leader.manager.connections) == before + 4
            assert all(end in leader.manager._anonymous for end in leader.links._unauthenticated)
            for _ in range(leaders_end.HANDSHAKE_TICKS_MAX + 1):
                for end in list(leader.links._unauthenticated):
                    end.check_time()
            await until(lambda: not leader.links._unauthenticated)
            assert leader.node.links == 1
            for _, writer in unauthenticated:
                writer.close()

    run(test)


def test_follower_sends_no_request_to_an_unproved_leader(tmp_path: Path) -> None:
    """N-29: a follower that is led to another's port proves nothing there and passes no token on."""

    async def test() -> None:
        received = bytearray()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            from holdfast.cluster.link_frames import Greeting

            received.extend(await reader.read(10_000))
            writer.write(framed(Greeting(L, b"x" * 32)))
            received.extend(await reader.read(10_000))
            writer.close()

        async with nodes(tmp_path, 2) as (leader, follower):
            server = await asyncio.start_server(serve, "127.0.0.1", 0)
            port = server.sockets[0].getsockname()[1]
            caller = await follower.call()
            caller.send("POST", "/locks/a/acquire", {"ttl_seconds": 60})
            leadership = await leader.lead()
            follower.follow(leadership, f"http://127.0.0.1:{port}")
            await until(lambda: received.count(PREFIX) >= 2)
            assert b"ana-has-this-token" not in received
            follower.follow(leadership, leader.url)
            assert (await caller.answer()).json()["status"] == "acquired"
            server.close()

    run(test)


def test_link_ends_with_its_term(tmp_path: Path) -> None:
    """N-31: when the tenure ends its links end, and the follower has one for the next tenure of the same node."""

    async def test() -> None:
        async with two_nodes(tmp_path) as (leader, follower):
            await leader.resign()
            await until(lambda: leader.node.links == 0 and not follower.node.is_linked)
            follower.follow(await leader.lead(), leader.url)
            await until(lambda: follower.node.is_linked)
            answer = await (await follower.call()).ask("GET", "/status")
            assert answer.headers["Holdfast-Epoch"] == "2"

    run(test)


def test_silence_ends_a_link(tmp_path: Path) -> None:
    """N-32: after 3 s without a word both ends give a link up, and who waits over it is gone; it is not cut before."""

    async def test() -> None:
        async with nodes(tmp_path, 2) as (leader, follower):
            await leader.start_leading_through_proxy()
            assert leader.proxy is not None and leader.term is not None
            follower.follow(leader.shelf.leadership, f"http://127.0.0.1:{leader.proxy.port}")
            await until(lambda: follower.node.is_linked)
            holder, waiter = await leader.call(), await follower.call()
            await holder.ask("POST", "/locks/a/acquire", {"ttl_seconds": 60})
            waiter.send("POST", "/locks/a/acquire", {"ttl_seconds": 60, "wait_seconds": 50})
            engine = leader.term.engine
            await until(lambda: len(engine._waiters) == 1)
            follower.follow(None)
            began = asyncio.get_running_loop().time()
            leader.proxy.hold()
            await until(lambda: not follower.node.is_linked and leader.node.links == 0)
            assert 2.5 < asyncio.get_running_loop().time() - began < 6
            assert len(engine._waiters) == 0

    run(test)


# TLS.


def test_link_over_tls_checks_the_certificate(tmp_path: Path) -> None:
    """N-29: over TLS a follower believes the authorities that it is given, and no other certificate."""

    async def test() -> None:
        certificate = make_certificate(tmp_path)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate, tmp_path / "key.pem")
        client = ssl.create_default_context(cafile=certificate)
        async with nodes(tmp_path, 3, tls_cert=certificate, start=False) as (leader, follower, doubtful):
            follower.link_client._security = Security(certificate)
            for node in (leader, follower, doubtful):
                await node.start(context)
            leadership = await leader.lead()
            url = f"https://127.0.0.1:{leader.port}"
            follower.follow(leadership, url)
            doubtful.follow(leadership, url)
            await until(lambda: follower.node.is_linked)
            caller = await follower.call(client)
            answer = await caller.ask("POST", "/locks/a/acquire", {"ttl_seconds": 60})
            assert answer.json()["status"] == "acquired", answer
            await until(lambda: doubtful.link_client._reported_failure is not None)
            assert "certificate" in str(doubtful.link_client._reported_failure) and not doubtful.node.is_linked

    run(test)


@pytest.mark.parametrize("host", ["192.0.2.1", "node1.example", "[2001:db8::1]"])
def test_link_without_tls_is_local_only(host: str) -> None:
    """N-29: no link goes to another machine in the clear, unless a setting allows it."""
    with pytest.raises(HandshakeError, match="link_insecure"):
        Security().of("http", host.strip("[]"))
    assert Security(insecure=True).of("http", host) is None
    assert [Security().of("http", own) for own in ("127.0.0.1", "::1", "localhost")] == [None, None, None]


class _FromElsewhere:
    """A transport whose other end is on another machine."""

    def get_extra_info(self, name: str) -> object:
        return {"peername": ("192.0.2.1", 1), "sslcontext": None}.get(name)


def test_leader_refuses_remote_links_without_tls(tmp_path: Path) -> None:
    """N-29: a leader refuses a link from another machine without TLS, unless a setting allows it."""

    async def test() -> None:
        async with two_nodes(tmp_path) as (leader, _):
            transport: asyncio.Transport = _FromElsewhere()  # type: ignore[assignment]
            assert leader.links._is_in_clear(transport)
            leader.links._insecure = True
            assert not leader.links._is_in_clear(transport)

    run(test)
