"""Makes the calls of a JSON file with grpcio, at each target, and prints what came of each as a line of JSON."""

import base64
import hashlib
import json
import sys
import threading

import grpc

LIMIT = [("grpc.max_receive_message_length", 64 << 20), ("grpc.max_send_message_length", 64 << 20)]


def pairs(metadata):
    """Metadata without what differs from call to call."""
    out = {}
    for key, value in metadata or ():
        if key not in ("date", "content-type"):
            out[key] = base64.b64encode(value).decode() if isinstance(value, bytes) else value
    return out


def run(channel, call):
    requests = [base64.b64decode(r) for r in call["requests"]]
    metadata = [(k, base64.b64decode(v) if k.endswith("-bin") else v) for k, v in (call.get("metadata") or {}).items()]
    turn = threading.Semaphore(1 if call.get("ping_pong") else 1 << 20)  # releases one request for each answer

    def messages():
        for request in requests:
            turn.acquire()
            yield request
        if call.get("never_ends"):
            threading.Event().wait(30)

    timeout = call.get("timeout_ms", 60000) / 1000
    stream = channel.stream_stream(call["method"])(messages(), timeout=timeout, metadata=metadata)
    answers, code, message = [], "OK", ""
    try:
        if call.get("cancel_after") == 0:
            stream.cancel()
        for answer in stream:
            answers.append(hashlib.sha256(answer).hexdigest())
            turn.release()
            if call.get("cancel_after") == len(answers):
                stream.cancel()
    except grpc.RpcError as error:
        code, message = error.code().name, error.details()
    if "timeout_ms" in call and code == "CANCELLED":
        code = "DEADLINE_EXCEEDED"  # a server of grpc-go resets the stream at its own deadline, perhaps first
    if code in ("DEADLINE_EXCEEDED", "CANCELLED"):
        return {"code": code, "answers": answers}
    return {"code": code, "message": message, "answers": answers,
            "header": pairs(stream.initial_metadata()), "trailer": pairs(stream.trailing_metadata())}


def main():
    with open(sys.argv[1]) as f:
        task = json.load(f)
    for target in task["targets"]:
        if target.get("ca"):
            with open(target["ca"], "rb") as f:
                creds = grpc.ssl_channel_credentials(f.read())
            channel = grpc.secure_channel(target["address"], creds, LIMIT + [("grpc.ssl_target_name_override", "localhost")])
        else:
            channel = grpc.insecure_channel(target["address"], LIMIT)
        with channel:
            for call in task["calls"]:
                print(json.dumps({"target": target["name"], "call": call["name"], **run(channel, call)}), flush=True)


main()
