"""A token endpoint for tests: an HTTP server with scripted responses."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from tests.support.loopback_server import LoopbackServer


class Endpoint(LoopbackServer):
    """Listens on a free loopback port. Sends the given responses in turn, repeats the last one; none: silence."""

    def __init__(self, certificate: Path | None = None) -> None:
        self.asked: list[tuple[str, dict[str, str], dict[str, list[str]]]] = []
        self.answers: list[tuple[int, dict[str, str], bytes]] = []
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                form = self.rfile.read(int(self.headers["Content-Length"])).decode()
                endpoint.asked.append((self.path, dict(self.headers), parse_qs(form)))
                if not endpoint.answers:
                    endpoint.closing.wait(60)
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

        super().__init__(Handler, certificate)
        self.url += "/token?tenant=a"
