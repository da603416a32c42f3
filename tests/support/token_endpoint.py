"""A token endpoint for tests: an HTTP server with scripted responses."""

from __future__ import annotations

import ssl
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs


class Endpoint:
    """Listens on a free loopback port. Sends the given responses in turn, repeats the last one; none: silence."""

    def __init__(self, certificate: Path | None = None) -> None:
        self.asked: list[tuple[str, dict[str, str], dict[str, list[str]]]] = []
        self.answers: list[tuple[int, dict[str, str], bytes]] = []
        self.closing = threading.Event()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                form = self.rfile.read(int(self.headers["Content-Length"])).decode()
                endpoint.asked.append((self.path, dict(self.headers), parse_qs(form)))
                if not endpoint.answers:
                    endpoint.closing.wait(10)
                    return
                status, headers, body = endpoint.answers[0]
                endpoint.answers = endpoint.answers[1:] or endpoint.answers
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"{'https' if certificate else 'http'}://127.0.0.1:{self._server.server_port}/token?tenant=a"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
