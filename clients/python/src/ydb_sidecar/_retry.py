"""Pauses between tries."""

from __future__ import annotations

import random
import time
from typing import Optional


class Backoff:
    """Growing, random pauses within a span of time: for retry loops of your own.

    ``next(error.retry_after)`` is the next pause, or None when the time would be over after it.
    """

    def __init__(self, seconds: Optional[float], first: float = 0.01, most: float = 1.0) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds
        self._pause, self._most = first, most

    def left(self) -> Optional[float]:
        """Seconds until the time is over; None: it never is."""
        return None if self._end is None else self._end - time.monotonic()

    def next(self, at_least: float = 0.0) -> Optional[float]:
        # The advice of the sidecar is spread too: callers that failed together must not come back together.
        pause = at_least + random.uniform(0, self._pause)
        self._pause = min(2 * self._pause, self._most)
        left = self.left()
        return pause if left is None or pause < left else None

    def wait(self, at_least: float = 0.0) -> bool:
        """Sleeps for the next pause; False, at once, when the time would be over."""
        pause = self.next(at_least)
        if pause is not None:
            time.sleep(pause)
        return pause is not None
