"""TLS over real sockets: a certificate of the server's own, one of the client, and handshakes that fail."""

import importlib.util
import os
import shutil
import socket
import ssl
import subprocess
import tempfile
import threading
import unittest
from concurrent import futures

from test_http import rows

import ydb_sidecar
from ydb_sidecar import SidecarError, Unavailable


class Tls(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if shutil.which("openssl") is None:
            raise unittest.SkipTest("openssl makes the certificates")
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.files = {}
        for name in ("server", "client", "stranger"):
            cert, key = os.path.join(folder.name, f"{name}.pem"), os.path.join(folder.name, f"{name}.key")
            curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1", "-subj", f"/CN={name}"]
            names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
            subprocess.run(["openssl", "req", "-x509", *curve, *names, "-keyout", key, "-out", cert], check=True, capture_output=True)
            cls.files[name] = (cert, key)

    def serve(self, client_ca=""):
        """Answers each request over TLS; returns the address and the list of requests."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self.files["server"])
        if client_ca:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(client_ca)
        listener, requests = socket.create_server(("127.0.0.1", 0)), []
        self.addCleanup(listener.close)

        def accept():
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                try:
                    with context.wrap_socket(connection, server_side=True) as tls:
                        head = tls.recv(65536)
                        if head:
                            requests.append(head)
                            tls.sendall(rows(1).replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1))
                except OSError:  # a handshake that failed
                    connection.close()

        threading.Thread(target=accept, daemon=True).start()
        return f"https://localhost:{listener.getsockname()[1]}", requests

    def test_calls(self):
        url, requests = self.serve()
        for address in (url, url.replace("localhost", "127.0.0.1")):
            with ydb_sidecar.connect(address, ca_file=self.files["server"][0]) as db:
                self.assertEqual(db.query("UPSERT").first().n, 1)
        self.assertEqual(len(requests), 2)

    def test_a_handshake_that_fails_sends_nothing(self):
        url, requests = self.serve()
        for ca_file in ("", self.files["stranger"][0]):
            with self.subTest(ca_file), ydb_sidecar.connect(url, ca_file=ca_file) as db, self.assertRaises(Unavailable) as caught:
                db.query("UPSERT")
            error = caught.exception
            self.assertEqual((error.code, error.safe_to_retry, error.outcome_unknown), ("SIDECAR_AWAY", True, False))
        self.assertEqual(requests, [])

    def test_a_certificate_of_the_client(self):
        url, requests = self.serve(self.files["client"][0])
        cert, key = self.files["client"]
        with ydb_sidecar.connect(url, ca_file=self.files["server"][0], cert_file=cert, key_file=key) as db:
            self.assertEqual(db.query("UPSERT").first().n, 1)
        with ydb_sidecar.connect(url, ca_file=self.files["server"][0]) as db, self.assertRaises(SidecarError):
            db.query("UPSERT", mode="snapshot_ro")
        self.assertEqual(len(requests), 1)

    @unittest.skipIf(importlib.util.find_spec("grpc") is None, "the packages of the extra are not installed")
    def test_grpc(self):
        import grpc

        from ydb_sidecar._proto.sidecar.v1 import sidecar_pb2, sidecar_pb2_grpc

        class Sidecar(sidecar_pb2_grpc.SidecarServicer):
            def Version(self, request, context):
                return sidecar_pb2.VersionResponse(api="v1")

        def read(path):
            with open(path, "rb") as file:
                return file.read()

        cert, key = self.files["server"]
        server = grpc.server(futures.ThreadPoolExecutor(2))
        sidecar_pb2_grpc.add_SidecarServicer_to_server(Sidecar(), server)
        port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(read(key), read(cert))]))
        server.start()
        self.addCleanup(server.stop, None)
        with ydb_sidecar.connect(f"grpcs://localhost:{port}", ca_file=cert) as db:
            self.assertEqual(db.version().api, "v1")
        stranger = self.files["stranger"][0]
        with ydb_sidecar.connect(f"grpcs://localhost:{port}", ca_file=stranger) as db, self.assertRaises(Unavailable) as caught:
            db.query("UPSERT", timeout=5)
        error = caught.exception
        self.assertEqual((error.code, error.safe_to_retry, error.outcome_unknown), ("SIDECAR_AWAY", True, False))


if __name__ == "__main__":
    unittest.main()
