"""Checks a sidecar against the description that it serves, with schemathesis: run.py [-time SECONDS]

It starts a development cluster and a sidecar on free ports, opens key-value tables, and lets schemathesis send whatever
openapi.yaml allows and forbids. hooks.py tells it the names of the tables, so that calls of every operation succeed. The run
fails when schemathesis finds something, when too few calls of an operation succeed by the sidecar's own metrics, or when the
sidecar logs a panic.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading

import requests
import yaml

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent

# Only values are deleted, and a value is named by the table and the id, while schemathesis takes the table alone for the resource.
# That a deleted value is gone is a case of proof/contract. They are named here, because the configuration cannot take checks out of all.
EXCLUDED = "use_after_free,ensure_resource_availability"

# Of each operation at least so many calls must succeed, or the run says too little about it.
LEAST = 10

# Operations without anything to vary are called a few times.
FIXED = ["GET /v1", "GET /v1/status", "GET /openapi.yaml"]

# The tables that the examples of openapi.yaml name, and those of hooks.py.
TABLES = [
    "CREATE TABLE users (id Uint64 NOT NULL, name Utf8, visits Int32, PRIMARY KEY (id))",
    "CREATE TABLE items (id Uint64 NOT NULL, name Utf8, n Int32, PRIMARY KEY (id))",
    "CREATE TABLE drafts (id Utf8 NOT NULL, v String, rev Uint64, PRIMARY KEY (id))",
    "CREATE TABLE bytes (id Utf8 NOT NULL, v String, PRIMARY KEY (id))",
]
SETTINGS = [
    "kv.tables=drafts=drafts key=id:Utf8 value=v:String version=rev:Uint64,bytes=bytes key=id:Utf8 value=v:String",
    # The limit of an id is in bytes, which a description cannot say. Some are longer than the 1 KiB that is the default.
    "kv.max_id=16384",
    # Transactions are begun and left. They must not take the sessions of other calls for long.
    "pool.max=500",
    "tx.idle=2s",
]


class Program:
    """A program that writes a ready line of JSON with its addresses."""

    def __init__(self, log: pathlib.Path, *command: str) -> None:
        self.log = log
        with log.open("w") as errors:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith('{"ready":true'):
                self.at: dict[str, str] = json.loads(line)
                # What else it writes there is read, so that it never waits for a reader.
                threading.Thread(target=self.process.stdout.read, daemon=True).start()
                return
        raise SystemExit(f"{command[0]} ended before it was ready:\n{log.read_text()}")

    def stop(self) -> int:
        self.process.terminate()
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


def create(http: str) -> None:
    for sql in TABLES:
        reply = requests.post(f"http://{http}/v1/query", json={"sql": sql}, timeout=60)
        if reply.status_code != 200:
            raise SystemExit(f"{sql}: {reply.text}")


SERVED = re.compile(r"http_server_request_duration_seconds_count\{(.*)\} (\d+)")


def succeeded(admin: str) -> dict[str, int]:
    """The calls with a status below 300 by operation, as the sidecar counted them."""
    count: dict[str, int] = {}
    for labels, n in SERVED.findall(requests.get(f"http://{admin}/metrics", timeout=60).text):
        label = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        if "http_route" in label and int(label["http_response_status_code"]) < 300:
            name = f"{label['http_request_method']} {label['http_route'].replace('...}', '}')}"
            count[name] = count.get(name, 0) + int(n)
    return count


def operations(http: str) -> list[str]:
    description = yaml.safe_load(requests.get(f"http://{http}/openapi.yaml", timeout=60).text)
    return [f"{method.upper()} {path}" for path, methods in description["paths"].items() for method in methods]


def check(http: str, seconds: int, more: list[str]) -> int:
    """Runs schemathesis for as long, and returns its exit code."""
    command = [str(pathlib.Path(sys.executable).parent / "schemathesis"), "--config-file", str(HERE / "schemathesis.toml"), "run"]
    command += [f"http://{http}/openapi.yaml", "--checks", "all", "--exclude-checks", EXCLUDED, "--max-time", str(seconds), *more]
    return subprocess.run(command, env={**os.environ, "SCHEMATHESIS_HOOKS": "hooks", "PYTHONPATH": str(HERE)}).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-time", type=int, default=600, metavar="SECONDS", help="default 600")
    parser.add_argument("-programs", type=pathlib.Path, default=ROOT / "bin", help="directory of sidecar and devcluster")
    o, more = parser.parse_known_args()  # the others are for schemathesis
    with tempfile.TemporaryDirectory() as name:
        logs = pathlib.Path(name)
        cluster = Program(logs / "devcluster", str(o.programs / "devcluster"), "-port", "0", "-control", "127.0.0.1:0")
        try:
            anywhere = [part for flag in ["-grpc", "-http", "-admin"] for part in (flag, "127.0.0.1:0")]
            settings = [part for setting in SETTINGS for part in ("-set", setting)]
            sidecar = Program(
                logs / "sidecar", str(o.programs / "sidecar"), "serve", "-ydb", cluster.at["endpoint"], *anywhere, *settings
            )
            try:
                create(sidecar.at["http"])
                code = check(sidecar.at["http"], o.time, more)
                count = succeeded(sidecar.at["admin"])
                every = operations(sidecar.at["http"])
            finally:
                ended = sidecar.stop()
        finally:
            cluster.stop()
        panics = [line for line in sidecar.log.read_text().splitlines() if "panic" in line]
    print("\nSuccessful calls by the sidecar's metrics:\n")
    for operation in every:
        print(f"{count.get(operation, 0):8} {operation}")
    few = [name for name in every if count.get(name, 0) < (1 if name in FIXED else LEAST)]
    for fault in [f"too few calls succeeded: {name}" for name in few] + panics:
        print(fault, file=sys.stderr)
    if ended != 0:
        print(f"the sidecar ended with {ended}", file=sys.stderr)
    return code or bool(few or panics or ended)


if __name__ == "__main__":
    sys.exit(main())
