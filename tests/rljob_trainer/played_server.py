"""A server of models that answers as a test says."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, Any]


class Server(ThreadingHTTPServer):
    request_queue_size = 64  # as many as may come at once: those beyond are reset


@contextmanager
def played(answer: Callable[[dict[str, Any], int], Answer], serves: Any = "m") -> Iterator[str]:
    """The URL of a server that answers as told. answer: of a request's body and its number, from 1."""
    lock, count = threading.Lock(), [0]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = json.dumps({"data": [{"id": "x", "root": serves}]} if isinstance(serves, str) else serves)
            self.send_response(200 if self.path == "/v1/models" else 404)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content.encode())

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            body |= {"headers": self.headers, "path": self.path}
            with lock:
                count[0] += 1
                number = count[0]
            status, content = answer(body, number)
            if status == 0:
                return  # the connection breaks off
            sent = content.encode() if isinstance(content, str) else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        def log_message(self, *_: Any) -> None: ...

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
