"""The gRPC transport against servers that fail. Without the packages of the extra there is nothing to test."""

import contextlib
import importlib.util
import os
import socket
import struct
import threading
import time
import unittest
from concurrent import futures
from unittest import mock

import ydb_sidecar
from ydb_sidecar import DeadlineExceeded, OutcomeUnknown, Unavailable

HEADERS, SETTINGS = 1, 4  # types of frames of HTTP/2


def reset_after_request(listener):
    """Accepts a connection, waits for the head of a request and resets the connection."""
    connection, _ = listener.accept()
    with connection, connection.makefile("rb") as reader:
        reader.read(len(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
        connection.sendall(bytes([0, 0, 0, SETTINGS, 0, 0, 0, 0, 0]))
        while True:
            head = reader.read(9)
            reader.read(int.from_bytes(head[:3], "big"))
            if head[3] == HEADERS:
                break
        time.sleep(0.1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def load_tests(_, tests, __):
    """Without the packages of the extra there is nothing to test."""
    return tests if importlib.util.find_spec("grpc") else unittest.TestSuite()


class Grpc(unittest.TestCase):
    @contextlib.contextmanager
    def serve(self, **methods):
        """A sidecar with these methods."""
        import grpc

        from ydb_sidecar._proto.sidecar.v1 import sidecar_pb2_grpc

        servicer = type("Servicer", (sidecar_pb2_grpc.SidecarServicer,), {name: staticmethod(one) for name, one in methods.items()})
        server = grpc.server(futures.ThreadPoolExecutor(4))
        sidecar_pb2_grpc.add_SidecarServicer_to_server(servicer(), server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            with ydb_sidecar.connect(f"grpc://127.0.0.1:{port}") as db:
                yield db
        finally:
            server.stop(0)

    def test_a_write_whose_connection_was_reset_is_unknown(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            threading.Thread(target=reset_after_request, args=(listener,), daemon=True).start()
            url = f"grpc://127.0.0.1:{listener.getsockname()[1]}"
            with ydb_sidecar.connect(url) as db, self.assertRaises(OutcomeUnknown) as caught:
                db.query("UPSERT", timeout=5)
        self.assertFalse(caught.exception.safe_to_retry)

    def test_a_write_that_reached_a_proxy_is_unknown(self):
        import grpc

        def execute(_, context):
            context.abort(grpc.StatusCode.UNAVAILABLE, "upstream connect error or disconnect/reset before headers")

        with self.serve(Execute=execute) as db, self.assertRaises(OutcomeUnknown):
            db.query("UPSERT")

    def test_without_a_connection_nothing_was_sent(self):
        with socket.create_server(("127.0.0.1", 0)) as nobody:
            port = nobody.getsockname()[1]
        for url in (f"grpc://127.0.0.1:{port}", "grpc+unix:///no/such/socket"):
            with self.subTest(url), ydb_sidecar.connect(url) as db:
                with self.assertRaises(Unavailable) as caught:
                    db.query("UPSERT", timeout=30)
                self.assertEqual((caught.exception.code, caught.exception.safe_to_retry), ("SIDECAR_AWAY", True))

    def test_what_is_no_sidecar(self):
        import grpc

        for details, code in (
            ("unknown service sidecar.v1.Sidecar", "NOT_A_SIDECAR"),
            ("Received http2 header with status: 404", "NOT_A_SIDECAR"),
            ("unknown method Execute for service sidecar.v1.Sidecar", "NO_SUCH_ROUTE"),
        ):

            def execute(_, context, details=details):
                context.abort(grpc.StatusCode.UNIMPLEMENTED, details)

            with self.subTest(details), self.serve(Execute=execute) as db, self.assertRaises(ydb_sidecar.SidecarError) as caught:
                db.query("UPSERT")
            error = caught.exception
            self.assertEqual((error.code, error.safe_to_retry, error.outcome_unknown), (code, False, False))

    def test_a_name_without_an_address_has_nothing_sent_to_it(self):
        import grpc

        for details in ("errors resolving nowhere:1: [field:hostname lookup error:...]", "DNS resolution failed for nowhere:1: ..."):

            def execute(_, context, details=details):
                context.abort(grpc.StatusCode.UNAVAILABLE, details)

            with self.subTest(details), self.serve(Execute=execute) as db, self.assertRaises(Unavailable) as caught:
                db.query("UPSERT")
            self.assertEqual((caught.exception.code, caught.exception.safe_to_retry), ("SIDECAR_AWAY", True))

    def test_no_proxy_of_the_environment_is_used(self):
        from ydb_sidecar._proto.sidecar.v1 import sidecar_pb2

        with socket.create_server(("127.0.0.1", 0)) as nobody:
            proxy = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        with mock.patch.dict(os.environ, {"http_proxy": proxy, "https_proxy": proxy, "grpc_proxy": proxy}):
            for name in ("no_proxy", "no_grpc_proxy"):
                os.environ.pop(name, None)
            with self.serve(Version=lambda *_: sidecar_pb2.VersionResponse(api="v1")) as db:
                self.assertEqual(db.version().api, "v1")

    def test_the_second_try_has_what_the_first_one_left(self):
        import grpc

        calls = []

        def version(_, context):
            calls.append(1)
            time.sleep(1 if len(calls) == 1 else 3)
            context.abort(grpc.StatusCode.UNAVAILABLE, "gone")

        with self.serve(Version=version) as db:
            begun = time.monotonic()
            with self.assertRaises(DeadlineExceeded):
                db.version(timeout=0.5)  # and one second to hear what came of it
            self.assertLess(time.monotonic() - begun, 2.2)
        self.assertEqual(len(calls), 2)


if __name__ == "__main__":
    unittest.main()
