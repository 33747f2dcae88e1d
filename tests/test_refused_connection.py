"""Wrong TLS settings, against real TLS: a proxy of this test's own before a real Temporal server, and certificates made by openssl."""

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from activities.configuration import Configuration
from tests.e2e.server import Server
from workers.client import TemporalUnreachable, connect
from workers.embedded.temporal import free_port


class Authority:
    """A certificate authority, and what it has signed."""

    def __init__(self, directory: Path, name: str) -> None:
        self.directory, self.name = directory, name
        self.certificate, self.key = directory / f"{name}.pem", directory / f"{name}.key"
        _openssl(
            "req", "-x509", "-newkey", "ec", *CURVE, "-nodes", "-keyout", self.key, "-out", self.certificate, "-days", "2", *_subject(name)
        )

    def signed(self, name: str, *, host: str = "127.0.0.1", days: int = 2) -> tuple[Path, Path]:
        """A certificate and its key for this host."""
        request, key, certificate = (self.directory / f"{self.name}-{name}.{kind}" for kind in ("csr", "key", "pem"))
        extensions = self.directory / f"{name}.ext"
        alternative = f"IP:{host}" if host[0].isdigit() else f"DNS:{host}"
        extensions.write_text(f"subjectAltName={alternative}\nextendedKeyUsage=serverAuth,clientAuth\n")
        _openssl("req", "-newkey", "ec", *CURVE, "-nodes", "-keyout", key, "-out", request, *_subject(name))
        authority = ("-CA", self.certificate, "-CAkey", self.key, "-CAcreateserial", "-extfile", extensions)
        _openssl("x509", "-req", "-in", request, "-out", certificate, "-days", str(days), *authority)
        return certificate, key


CURVE = ("-pkeyopt", "ec_paramgen_curve:P-256")


def _subject(name: str) -> tuple[str, str]:
    return "-subj", f"/CN={name}"


def _openssl(*arguments: Any) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ours"), "ours")


@pytest.fixture(scope="module")
def another(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("another"), "another")


@asynccontextmanager
async def tls_in_front_of(server: Server, certificate: tuple[Path, Path], *, clients: Authority | None = None) -> AsyncIterator[str]:
    """The address of a TLS listener before the server; with `clients`, it wants a certificate that this authority signed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    context.set_alpn_protocols(["h2"])
    if clients is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(clients.certificate)
    host, _, port = server.address.rpartition(":")

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(host, int(port))

        async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            try:
                while data := await source.read(65536):
                    sink.write(data)
                    await sink.drain()
            except (OSError, ssl.SSLError):
                return
            finally:
                sink.close()

        await asyncio.gather(copy(reader, back), copy(there, writer))

    listener = await asyncio.start_server(pass_on, "127.0.0.1", 0, ssl=context)
    try:
        yield f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    finally:
        listener.close()


@asynccontextmanager
async def openssl_that_wants(clients: Authority, certificate: tuple[Path, Path], version: str) -> AsyncIterator[str]:
    """The address of openssl's own server, which refuses clients as TLS has it: by an alert. (asyncio's server just hangs up.)"""
    port = free_port()
    wants = ("-Verify", "1", "-verify_return_error", "-CAfile", str(clients.certificate))
    keys = ("-cert", str(certificate[0]), "-key", str(certificate[1]))
    command = ("openssl", "s_server", "-accept", f"127.0.0.1:{port}", *keys, *wants, "-alpn", "h2", version)
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    assert process.stdout is not None
    try:
        while b"ACCEPT" not in (line := await process.stdout.readline()):
            assert line, "openssl did not start"
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        await process.wait()


def a_configuration(address: str, **temporal: Any) -> Configuration:
    section = {"address": address, "database": "/nonexistent/temporal.db", **temporal}  # not the one of whoever runs the tests
    return Configuration.model_validate({"cluster": {"name": "alpha"}, "temporal": section})


async def refused(address: str, **temporal: Any) -> TemporalUnreachable:
    with pytest.raises(TemporalUnreachable) as error:
        await connect(a_configuration(address, **temporal))
    assert "\n" not in str(error.value)
    assert not any(raw in str(error.value) for raw in ("Status {", "tonic", "InvalidContentType", "error: "))
    return error.value


async def test_the_right_settings_connect(server: Server, ours: Authority) -> None:
    certificate, key = ours.signed("client")
    async with tls_in_front_of(server, ours.signed("server"), clients=ours) as address:
        client = await connect(a_configuration(address, tls=True, tls_ca=ours.certificate, tls_certificate=certificate, tls_key=key))
        assert await client.service_client.check_health()


async def test_tls_to_a_server_without_it(server: Server) -> None:
    error = await refused(server.address, tls=True)
    assert "does not speak TLS, and temporal.tls is true" in error.found
    assert error.mend.startswith("set temporal.tls: false")


async def test_plain_text_to_a_server_that_speaks_tls(server: Server, ours: Authority) -> None:
    async with tls_in_front_of(server, ours.signed("server")) as address:
        error = await refused(address)
    assert "speaks TLS, and temporal.tls is false" in error.found
    assert error.mend.startswith("set temporal.tls: true")


@pytest.mark.parametrize("given", [True, False], ids=["another authority", "the system's authorities"])
async def test_a_certificate_of_an_authority_that_is_not_ours(server: Server, ours: Authority, another: Authority, given: bool) -> None:
    settings = {"tls_ca": another.certificate} if given else {}
    async with tls_in_front_of(server, ours.signed("server")) as address:
        error = await refused(address, tls=True, **settings)
    assert f"is not signed by {f'temporal.tls_ca ({another.certificate})' if given else 'this machine'}" in error.found
    assert error.mend.startswith("set temporal.tls_ca to")


async def test_a_certificate_for_another_name(server: Server, ours: Authority) -> None:
    async with tls_in_front_of(server, ours.signed("elsewhere", host="temporal.example.org")) as address:
        error = await refused(address, tls=True, tls_ca=ours.certificate)
    assert "is for another name" in error.found
    assert "temporal.address" in error.mend


async def test_a_certificate_that_has_expired(server: Server, ours: Authority) -> None:
    async with tls_in_front_of(server, ours.signed("old", days=-1)) as address:
        error = await refused(address, tls=True, tls_ca=ours.certificate)
    assert "has expired" in error.found


@pytest.mark.parametrize("version", ["-tls1_3", "-tls1_2"])
async def test_no_client_certificate_where_one_is_wanted(ours: Authority, version: str) -> None:
    async with openssl_that_wants(ours, ours.signed("server"), version) as address:
        error = await refused(address, tls=True, tls_ca=ours.certificate)
    assert "wants a client certificate" in error.found
    assert error.mend == "set temporal.tls_certificate and temporal.tls_key"


@pytest.mark.parametrize("version", ["-tls1_3", "-tls1_2"])
async def test_a_client_certificate_of_another_authority(ours: Authority, another: Authority, version: str) -> None:
    certificate, key = another.signed("client")
    async with openssl_that_wants(ours, ours.signed("server"), version) as address:
        error = await refused(address, tls=True, tls_ca=ours.certificate, tls_certificate=certificate, tls_key=key)
    assert f"refuses the client certificate {certificate}" in error.found


async def test_files_that_do_not_fit_are_named_before_anybody_is_asked(ours: Authority, tmp_path: Path) -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    (certificate, _), (_, other_key) = ours.signed("one"), ours.signed("two")
    no_pem = tmp_path / "no.pem"
    no_pem.write_text("-")
    told = [
        (await refused(nowhere, tls=True, tls_certificate=certificate, tls_key=other_key)).found,
        (await refused(nowhere, tls=True, tls_certificate=certificate)).found,
        (await refused(nowhere, tls=True, tls_ca=no_pem)).found,
        (await refused(nowhere, tls=True, tls_ca=tmp_path / "missing.pem")).found,
        (await refused(nowhere, api_key_file=tmp_path / "missing.key")).found,
    ]
    assert told[0] == f"{other_key} is not the key of {certificate}"
    assert told[1] == "temporal.tls_certificate is set and temporal.tls_key is not"
    assert told[2] == f"{no_pem} holds no certificate authority"
    assert told[3:] == [f"{tmp_path / name} cannot be read: No such file or directory" for name in ("missing.pem", "missing.key")]


# A gRPC server that refuses every call, as Temporal Cloud refuses a key that it does not know: HTTP/2 by the letter (RFC 9113, 7541).
UNAUTHENTICATED, PERMISSION_DENIED = b"16", b"7"


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def _header(name: bytes, value: bytes) -> bytes:
    return b"\x00" + bytes((len(name),)) + name + bytes((len(value),)) + value  # a literal that is not indexed, without Huffman


@asynccontextmanager
async def a_server_that_refuses(status: bytes) -> AsyncIterator[str]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readexactly(24)  # the preface
            writer.write(_frame(4, 0, 0, b""))
            while True:
                head = await reader.readexactly(9)
                payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
                kind, flags, stream = head[3], head[4], int.from_bytes(head[5:], "big")
                if kind == 4 and not flags & 1:
                    writer.write(_frame(4, 1, 0, b""))
                elif kind == 6 and not flags & 1:
                    writer.write(_frame(6, 1, 0, payload))
                elif kind == 1:
                    said = _header(b"grpc-status", status) + _header(b"grpc-message", b"Request unauthorized.")
                    writer.write(_frame(1, 4 | 1, stream, b"\x88" + _header(b"content-type", b"application/grpc") + said))
                await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            writer.close()

    listener = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    finally:
        listener.close()


@pytest.mark.parametrize("status", [UNAUTHENTICATED, PERMISSION_DENIED])
async def test_a_wrong_api_key_names_its_file_and_never_the_key(tmp_path: Path, status: bytes) -> None:
    key = tmp_path / "temporal.key"
    key.write_text("eyJhbGciOi.secret\n")
    async with a_server_that_refuses(status) as address:
        error = await refused(address, api_key_file=key)
    assert error.found == f"the Temporal server at {address} refuses the API key in {key}"
    assert "secret" not in str(error)
    assert "namespace default" in error.mend


async def test_no_api_key_where_one_is_wanted() -> None:
    async with a_server_that_refuses(UNAUTHENTICATED) as address:
        error = await refused(address)
    assert "wants to know who asks" in error.found
    assert "temporal.api_key_file" in error.mend


async def test_where_nothing_listens_the_fix_is_to_start_it() -> None:
    error = await refused(f"127.0.0.1:{free_port()}", tls=True)
    assert "(Connection refused)" in error.found
    assert "backstay up" in error.mend
