"""The puller's half inside the sandbox: fetch the next request, post an answer. Standard library only and quick to start.

Run as ``python -m rock.model_service.pull next --after 3`` or as a lone file. The result is one line on stdout that begins
with a frame, so that no warning of a shell or an interpreter can be taken for it.
"""

from __future__ import annotations

import http.client
import json
import sys

FRAME = "ROCK-MODEL-SERVICE "
USAGE = """usage: pull [--port N] [--token-file FILE] VERB ...
  next --after N --timeout S          the next request above index N
  respond --index N --file FILE       answer request N with the JSON in FILE (- is stdin)
  call --method M --path P [--file FILE] --timeout S"""


def exchange(
    method: str, path: str, body: bytes | None = None, *, port: int, token: str | None = None, timeout: float = 90.0
) -> tuple[int, bytes]:
    """One HTTP exchange with the service on this machine: (status, body)."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    headers = {"content-type": "application/json"} if body is not None else {}
    if token:
        headers["x-rock-puller-token"] = token
    try:
        connection.request(method, path, body=body, headers=headers)
        reply = connection.getresponse()
        return reply.status, reply.read()
    finally:
        connection.close()


def main(arguments: list[str]) -> int:
    """Runs one verb and prints its framed result; 0 when the service agreed."""
    options = {
        "port": "28080",
        "token-file": "",
        "after": "0",
        "timeout": "30",
        "index": "",
        "file": "",
        "method": "GET",
        "path": "/",
    }
    verb = ""
    words = iter(arguments)
    for word in words:
        if word.startswith("--") and word[2:] in options:
            options[word[2:]] = next(words, "")
        elif word in ("next", "respond", "call") and not verb:
            verb = word
        else:
            sys.exit(USAGE)
    timeout = float(options["timeout"])
    method, path = options["method"], options["path"]
    if verb == "next":
        path = "/pull?after={}&timeout={}".format(int(options["after"]), timeout)
        timeout += 15
    elif verb == "respond":
        method, path = "POST", "/answers/{}".format(int(options["index"]))
    elif verb != "call":
        sys.exit(USAGE)
    payload = _read(options["file"]) if options["file"] else None
    token = _read(options["token-file"]).decode().strip() if options["token-file"] else None
    status, body = exchange(method, path, payload, port=int(options["port"]), token=token, timeout=timeout)
    text = body.decode("utf-8", "replace")
    try:
        reply = json.loads(text)
    except ValueError:
        reply = {"error": {"message": text[:2000]}}
    sys.stdout.write(FRAME + json.dumps({"status": status, "reply": reply}) + "\n")
    sys.stdout.flush()
    return 0 if status < 400 else 1


def _read(name: str) -> bytes:
    if name == "-":
        return sys.stdin.buffer.read()
    with open(name, "rb") as file:
        return file.read()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
