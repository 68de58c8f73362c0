"""The traceparent of a call."""

from __future__ import annotations

from typing import Callable, Dict, Optional

try:  # OpenTelemetry is used where the app has it
    from opentelemetry.propagate import inject as _inject
except ImportError:
    _inject = None

Traceparent = Callable[[], str]


def trace_headers(explicit: str, source: Optional[Traceparent]) -> Dict[str, str]:
    """The headers that join the caller's trace: the argument of the call, the function given to connect(), or
    the current span of OpenTelemetry."""
    value = explicit or (source() if source is not None else "")
    if value:
        return {"traceparent": value}
    headers: Dict[str, str] = {}
    if _inject is not None:
        _inject(headers)
    return {name: headers[name] for name in ("traceparent", "tracestate") if name in headers}
