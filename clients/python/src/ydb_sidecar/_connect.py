"""Addresses and settings of clients."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Any, Callable, Optional
from urllib.parse import unquote, urlsplit

from ._http import HttpTransport
from ._net import Address, Runtime
from ._trace import trace_headers
from ._transport import Options, Transport


@dataclass
class Settings:
    """How a client makes its calls. ``ydb_sidecar.connect()`` has the meaning of each."""

    timeout: Optional[float] = 10.0
    connections: int = 64
    app: str = ""
    token: str = ""
    priority: str = ""
    traceparent: Optional[Callable[[], str]] = None
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""


_SCHEMES = {"http": 7401, "https": 7401, "grpc": 7400, "grpcs": 7400}


def transport_of(url: str, runtime: Runtime, settings: Settings, asynchronous: bool) -> Transport:
    parts = urlsplit(url)
    if parts.scheme in ("unix", "grpc+unix"):
        if not parts.path or parts.netloc:
            raise ValueError(f"{url!r}: a Unix socket is {parts.scheme}:///path/of/the/socket")
        address = Address("", 0, unquote(parts.path), None)
    elif parts.scheme in _SCHEMES and parts.hostname and parts.path in ("", "/"):
        tls = _tls(settings) if parts.scheme == "https" else None
        address = Address(parts.hostname, parts.port or _SCHEMES[parts.scheme], "", tls)
    else:
        raise ValueError(f"{url!r}: want http://, https://, grpc:// or grpcs:// with host:port, or unix:///path, grpc+unix:///path")
    if not parts.scheme.startswith("grpc"):
        return HttpTransport(runtime, address, settings.connections)
    try:
        from . import _grpc
    except ImportError as error:
        raise ImportError(f"gRPC needs more packages: pip install 'ydb-sidecar[grpc]' ({error})") from error
    credentials = _grpc_credentials(settings) if parts.scheme == "grpcs" else None
    return _grpc.GrpcTransport(runtime, address, asynchronous, credentials)


def _tls(settings: Settings) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=settings.ca_file or None)
    if settings.cert_file:
        context.load_cert_chain(settings.cert_file, settings.key_file or None)
    return context


def _grpc_credentials(settings: Settings) -> Any:
    import grpc

    def read(path: str) -> Optional[bytes]:
        if not path:
            return None
        with open(path, "rb") as file:
            return file.read()

    return grpc.ssl_channel_credentials(read(settings.ca_file), read(settings.key_file), read(settings.cert_file))


def options_of(settings: Settings, timeout: Optional[float], priority: str, traceparent: str, default: bool = True) -> Options:
    """How one call is made: what it says itself, or else what the client says."""
    headers = trace_headers(traceparent, settings.traceparent)
    if settings.app:
        headers["X-Sidecar-App"] = settings.app
    if settings.token:
        headers["Authorization"] = f"Bearer {settings.token}"
    if priority or settings.priority:
        headers["X-Ydb-Priority"] = priority or settings.priority
    if timeout is not None and not isinstance(timeout, (int, float)):
        raise TypeError(f"timeout is {timeout!r}; it is a number of seconds")
    return Options(timeout if timeout is not None else settings.timeout if default else None, headers)
