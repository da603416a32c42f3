"""Stand-ins for the metadata and token endpoints of clouds: HTTP servers with the documented requests and responses."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.loopback_server import LoopbackServer
from tests.support.token_of_alice import token


@dataclass
class Request:
    """A request; `headers` have names in lower case."""

    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    form: dict[str, list[str]]
    body: str


Answer = tuple[int, dict[str, str], bytes]


class CloudEndpoint(LoopbackServer):
    """Listens on a free loopback port.

    `answers` maps "METHOD /path" to a response or a function of the request. `otherwise` is the response to all other
    requests; None: silence, until `close`.
    """

    def __init__(self, certificate: Path | None = None) -> None:
        self.requests: list[Request] = []
        self.answers: dict[str, Answer | Callable[[Request], Answer]] = {}
        self.otherwise: Answer | Callable[[Request], Answer] | None = (404, {}, b"")
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                url = urlsplit(self.path)
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
                headers = {name.lower(): value for name, value in self.headers.items()}
                request = Request(self.command, url.path, parse_qs(url.query), headers, parse_qs(body), body)
                endpoint.requests.append(request)
                answer = endpoint.answers.get(f"{self.command} {url.path}", endpoint.otherwise)
                if answer is None:
                    endpoint.closing.wait(60)
                    return
                status, headers, content = answer(request) if callable(answer) else answer
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_PUT = answer  # noqa: N815

            def log_message(self, *_: Any) -> None:
                pass

        super().__init__(Handler, certificate)


def json_answer(status: int = 200, headers: dict[str, str] | None = None, **fields: Any) -> Answer:
    return status, {"Content-Type": "application/json", **(headers or {})}, json.dumps(fields).encode()


def echo(request: Request) -> Answer:
    """Repeat the request in an error, as careless endpoints and proxies do."""
    text = f"{request.path} {request.query} {request.headers} {request.body}"
    return json_answer(400, error="invalid_request", error_description=text)


GARBAGE: Answer = (200, {"Content-Type": "text/html"}, b"<html>Sign in to the hotel's network</html>")
BROKEN: Answer = (500, {}, b"oops")


def imds_of_alice(request: Request) -> Answer:
    """Answer as Azure's metadata endpoint, with an unsigned token of alice that a local Kafka accepts."""
    return json_answer(access_token=token(), expires_in="3600", token_type="Bearer", resource="kafka")


def imds_properties(endpoint: CloudEndpoint) -> dict[str, str]:
    """Return the properties of a client whose token comes from a stand-in for Azure's metadata endpoint."""
    return {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.metadata.authentication.type": "azure_imds",
        "sasl.oauthbearer.token.endpoint.url": f"{endpoint.url}/metadata/identity/oauth2/token",
        "sasl.oauthbearer.config": "query=api-version=2018-02-01&resource=kafka",
    }
