"""Why a connection to Temporal was refused, in one sentence with the right fix. The SDK tells of a wrong TLS setting what its native part
met ("frame with invalid size", "InvalidContentType"); so the server is asked once more by Python's own TLS, whose errors have names.

Called by `client.py`, only after a connection failed; nothing is sent but a handshake and HTTP/2's greeting.
"""

import asyncio
import re
import socket
import ssl
from datetime import timedelta

from activities.configuration import TemporalSection

Refusal = tuple[str, str]
"""What was found, and the fix."""

LOOKED_FOR = timedelta(seconds=5)

_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))  # RFC 9113, 3.4: preface and empty SETTINGS
_SETTINGS = 4  # the type of the frame that a server answers with

# X509_V_ERR_* (openssl/x509_vfy.h), as `SSLCertVerificationError.verify_code` has them.
_EXPIRED, _NOT_YET_VALID, _OTHER_HOST = (10,), (9,), (62, 64)


def unusable_files(section: TemporalSection) -> Refusal | None:
    """What is wrong with the files of the TLS settings, which no server need be asked for."""
    certificate, key, authority = section.tls_certificate, section.tls_key, section.tls_ca
    if (certificate is None) != (key is None):
        there, missing = ("tls_certificate", "tls_key") if key is None else ("tls_key", "tls_certificate")
        return f"temporal.{there} is set and temporal.{missing} is not", f"set temporal.{missing} too: a client certificate needs its key"
    for path in filter(None, (authority, certificate, key)):
        try:
            path.expanduser().read_bytes()
        except OSError as error:
            return f"{path} cannot be read: {error.strerror}", "mend the temporal.tls_* paths or the file's permissions"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if authority is not None:
        try:
            context.load_verify_locations(authority.expanduser())
        except ssl.SSLError:
            return f"{authority} holds no certificate authority", "set temporal.tls_ca to the PEM file of the server's authority"
    if certificate is not None and key is not None:
        try:
            context.load_cert_chain(certificate.expanduser(), key.expanduser(), password="")
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                return f"{key} is not the key of {certificate}", "set temporal.tls_key and temporal.tls_certificate to one pair"
            return f"{certificate} and {key} are no client certificate and key in PEM", "set temporal.tls_certificate and temporal.tls_key"
    return None


async def why_refused(section: TemporalSection, address: str, error: Exception) -> Refusal | None:
    """Why the server at `address` refused us, with the fix; None where it is not known, or where nothing listens there.

    Args:
        section: the settings that were used.
        address: `host:port`.
        error: what the SDK raised.
    """
    if re.search(r"code: (Unauthenticated|PermissionDenied)|unauthorized", str(error), re.IGNORECASE):
        return _unauthorised(section, address)
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        return f"temporal.address is {address!r}, which has no port", "write it as host:port, such as 127.0.0.1:7233"
    host = host.strip("[]")
    look = _with_tls if section.tls else _in_plain_text
    try:
        # In a thread, with sockets that wait: asyncio's own TLS keeps the alerts to itself, in which a server says what it does not like.
        return await asyncio.to_thread(look, section, host, int(port))
    except OSError:  # nothing listens there, or it says nothing at all; TimeoutError is one
        return None


def _unauthorised(section: TemporalSection, address: str) -> Refusal:
    if section.api_key_file is not None:
        fix = f"write a valid key for namespace {section.namespace} there, or mend temporal.namespace"
        return f"the Temporal server at {address} refuses the API key in {section.api_key_file}", fix
    if section.tls_certificate is not None:
        fix = f"use one that may use namespace {section.namespace}"
        return f"the Temporal server at {address} refuses the client certificate {section.tls_certificate}", fix
    return f"the Temporal server at {address} wants to know who asks", "set temporal.api_key_file, or temporal.tls_certificate and tls_key"


def _in_plain_text(section: TemporalSection, host: str, port: int) -> Refusal | None:
    """With `tls: false`: does the server speak TLS?"""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent; only whether it answers is asked
    try:
        with _connected(host, port) as plain, context.wrap_socket(plain):
            pass
    except ssl.SSLError as error:
        if "ALERT" not in (error.reason or ""):  # an alert is an answer in TLS
            return None
    except ConnectionError:
        return None
    key = " (and an API key is never sent in plain text)" if section.api_key_file else ""
    fix = "set temporal.tls: true, and temporal.tls_ca where its certificate authority is your own"
    return f"the Temporal server at {host}:{port} speaks TLS, and temporal.tls is false{key}", fix


def _with_tls(section: TemporalSection, host: str, port: int) -> Refusal | None:
    """With `tls: true`: does the server speak TLS, do we trust it, does it trust us?"""
    where = f"the Temporal server at {host}:{port}"
    authority = section.tls_ca.expanduser() if section.tls_ca else None
    context = ssl.create_default_context(cafile=str(authority) if authority else None)
    context.set_alpn_protocols(["h2"])
    if section.tls_certificate and section.tls_key:
        context.load_cert_chain(section.tls_certificate.expanduser(), section.tls_key.expanduser())
    shaken = False
    try:
        with _connected(host, port) as plain, context.wrap_socket(plain, server_hostname=host) as secure:
            shaken = True
            # In TLS 1.3 a server looks at the client's certificate once the client is done: its answer is the first thing read.
            secure.sendall(_GREETING)
            if not secure.recv(9):
                return _client_certificate_refused(section, where)
    except ssl.SSLCertVerificationError as error:
        return _not_trusted(section, where, host, error)
    except (ssl.SSLError, ConnectionError) as error:
        if shaken or "ALERT" in (getattr(error, "reason", None) or ""):
            return _client_certificate_refused(section, where)
        if _speaks_plain_http2(host, port):
            return f"{where} does not speak TLS, and temporal.tls is true", "set temporal.tls: false, or temporal.address to its TLS port"
    return None


def _not_trusted(section: TemporalSection, where: str, host: str, error: ssl.SSLCertVerificationError) -> Refusal:
    if error.verify_code in _EXPIRED:
        return f"the certificate of {where} has expired", "renew it, or set this machine's clock"
    if error.verify_code in _NOT_YET_VALID:
        return f"the certificate of {where} is not valid yet", "set this machine's clock"
    if error.verify_code in _OTHER_HOST:
        return f"the certificate of {where} is for another name", f"set temporal.address to a name it is for, in place of {host}"
    used = f"temporal.tls_ca ({section.tls_ca})" if section.tls_ca else "this machine's certificate authorities"
    return f"the certificate of {where} is not signed by {used}", "set temporal.tls_ca to the PEM file of the authority that signed it"


def _client_certificate_refused(section: TemporalSection, where: str) -> Refusal:
    if section.tls_certificate is None:
        return f"{where} wants a client certificate", "set temporal.tls_certificate and temporal.tls_key"
    fix = "set temporal.tls_certificate and temporal.tls_key to one signed by an authority that the server trusts"
    return f"{where} refuses the client certificate {section.tls_certificate}", fix


def _speaks_plain_http2(host: str, port: int) -> bool:
    with _connected(host, port) as plain:
        plain.sendall(_GREETING)
        frame = plain.recv(9)
    return len(frame) == 9 and frame[3] == _SETTINGS


def _connected(host: str, port: int) -> socket.socket:
    return socket.create_connection((host, port), timeout=LOOKED_FOR.total_seconds())
