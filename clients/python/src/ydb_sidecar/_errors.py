"""Errors of the sidecar as exceptions."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Type


class SidecarError(Exception):
    """A call that failed.

    Two members say what to do, whatever the code:

    - ``safe_to_retry``: nothing was kept and another try may succeed, or the call is idempotent. In a
      transaction, repeat all of it: ``transaction()`` does that.
    - ``outcome_unknown``: it may have run. Read back before you repeat it.

    If neither is true, nothing was kept, and the same call would fail again or an operator ended it.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        status: int = 0,
        safe_to_retry: bool = False,
        outcome_unknown: bool = False,
        retry_after: float = 0.0,
        trace_id: str = "",
        hint: str = "",
        operator_hint: str = "",
        ydb_status: str = "",
        issues: Optional[List[Dict[str, Any]]] = None,
    ) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code  # stable; the page of errors lists all
        self.message = message
        self.status = status  # of HTTP, over gRPC too
        self.safe_to_retry = safe_to_retry
        self.outcome_unknown = outcome_unknown
        self.retry_after = retry_after  # seconds to wait before another try; 0: no advice
        self.trace_id = trace_id
        self.hint = hint  # for the caller
        self.operator_hint = operator_hint  # for whoever runs the sidecar
        self.ydb_status = ydb_status  # status of YDB's own answer; "": the error is not YDB's
        self.issues = issues or []  # YDB's own explanation


class BadRequest(SidecarError):
    """The request or the statement is wrong."""


class AccessDenied(SidecarError):
    """The caller, or its app, may not do this."""


class NotFound(SidecarError):
    """What the call names does not exist."""


class Conflict(SidecarError):
    """The data is not as the call requires, or another transaction was faster."""


class ExpectationFailed(Conflict):
    """A statement of a list returned another number of rows than ``expect`` says. Nothing was kept."""


class ConditionFailed(Conflict):
    """The row of the key-value API is not as ``match`` or ``none_match`` asks."""


class TransactionLost(SidecarError):
    """The transaction is not open any more. It was rolled back, unless the outcome is unknown."""


class Overloaded(SidecarError):
    """There is more to do than can be done now: wait for ``retry_after``."""


class Unavailable(SidecarError):
    """The sidecar, a node or the database cannot be reached now."""


class DeadlineExceeded(SidecarError):
    """The time of the call ended first."""


class OutcomeUnknown(SidecarError):
    """The call may have run. The code says what happened."""


_BY_CODE: Dict[str, Type[SidecarError]] = {
    "EXPECTATION_FAILED": ExpectationFailed,
    "CONDITION_FAILED": ConditionFailed,
    "TX_LOST": TransactionLost,
    "DEADLINE_EXCEEDED": DeadlineExceeded,
    "TABLE_READ_ONLY": AccessDenied,
    "NOT_A_SIDECAR": Unavailable,
}

_BY_STATUS: Dict[int, Type[SidecarError]] = {
    400: BadRequest,
    401: AccessDenied,
    403: AccessDenied,
    404: NotFound,
    405: BadRequest,
    409: Conflict,
    410: TransactionLost,
    412: Conflict,
    413: BadRequest,
    415: BadRequest,
    429: Overloaded,
    502: Unavailable,
    503: Unavailable,
    504: DeadlineExceeded,
}


def make_error(code: str, message: str, **members: Any) -> SidecarError:
    """The exception for an error. A code that this version does not know is an error of its status."""
    kind = _BY_CODE.get(code) or _BY_STATUS.get(members.get("status", 0), SidecarError)
    if members.get("outcome_unknown"):
        kind = OutcomeUnknown
    return kind(code, message, **members)


def error_from(problem: Mapping[str, Any], status: int = 0) -> SidecarError:
    """The exception for a problem as the API sends it."""
    return make_error(
        str(problem.get("code", "")) or f"HTTP_{status}",
        str(problem.get("message", "")) or "the answer is not the sidecar's",
        status=int(problem.get("status", status)),
        safe_to_retry=bool(problem.get("safe_to_retry", False)),
        outcome_unknown=bool(problem.get("outcome_unknown", False)),
        retry_after=float(problem.get("retry_after_ms", 0)) / 1000,
        trace_id=str(problem.get("trace_id", "")),
        hint=str(problem.get("hint", "")),
        operator_hint=str(problem.get("operator_hint", "")),
        ydb_status=str(problem.get("ydb_status", "")),
        issues=list(problem.get("issues") or []),
    )


def not_a_sidecar(where: str, what: str, status: int = 0) -> SidecarError:
    """The exception for an answer of something else than a sidecar, which has certainly run nothing."""
    return make_error(
        "NOT_A_SIDECAR",
        f"what answers at {where} is no sidecar: {what}",
        status=status,
        hint="check the address: the sidecar's HTTP API (http://, port 7401) and its gRPC API (grpc://, port 7400) have different ports",
    )


def no_answer(what: str, *, sent: bool, keeps: bool, idempotent: bool, late: bool = False) -> SidecarError:
    """The exception for a call to which the sidecar gave no answer.

    A call that could not be sent did not run. One that was sent may have run, unless it keeps nothing by
    itself: a read, or a statement inside an open transaction.
    """
    unknown = sent and keeps
    code = "DEADLINE_EXCEEDED" if late else "OUTCOME_UNKNOWN" if unknown else "SIDECAR_AWAY"
    hint = (
        "read back whether it ran; repeat only what may happen twice"
        if unknown
        else "check that the sidecar runs and that the address is right; its HTTP API and its gRPC API have different ports"
    )
    return make_error(code, what, status=504 if late else 503, safe_to_retry=idempotent or not unknown, outcome_unknown=unknown, hint=hint)
