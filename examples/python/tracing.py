"""Spans of this app, and the traceparent that joins the sidecar's spans to them.

With OTEL_EXPORTER_OTLP_ENDPOINT set and the OpenTelemetry packages installed the
spans are exported. Without either, every operation still carries a trace id of its
own, which the sidecar and the database put into their traces and error answers.
"""

import contextlib
import contextvars
import os
import secrets

_current = contextvars.ContextVar("traceparent", default="")
_tracer = None


def start(service):
    """Switches export on if the environment asks for it. Returns what to call at the end."""
    global _tracer
    if not os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT"):
        return lambda: None
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=Resource.create({"service.name": service}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    _tracer = provider.get_tracer(service)
    return provider.shutdown


@contextlib.contextmanager
def span(name, parent=""):
    """A span around the block; `parent` is a caller's traceparent, as from an HTTP header."""
    parent = parent or _current.get()
    if _tracer is None:
        trace = parent.split("-")[1] if parent.count("-") == 3 else secrets.token_hex(16)
        with _joined(f"00-{trace}-{secrets.token_hex(8)}-01"):
            yield
        return
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
    context = TraceContextTextMapPropagator().extract({"traceparent": parent})
    with _tracer.start_as_current_span(name, context) as current:
        it = current.get_span_context()
        with _joined(f"00-{it.trace_id:032x}-{it.span_id:016x}-{it.trace_flags:02x}"):
            yield


def traceparent():
    """The W3C header of the current span; a fresh one outside of any."""
    return _current.get() or f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01"


@contextlib.contextmanager
def _joined(value):
    token = _current.set(value)
    try:
        yield
    finally:
        _current.reset(token)
