"""All requests of `protocol.wire.messages` by API key. Clients import only the messages that they use."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from protocol.wire import messages
from protocol.wire.schema import Api

_MODULES = [import_module(f"{messages.__name__}.{module.name}") for module in iter_modules(messages.__path__)]
_APIS = [api for module in _MODULES for api in vars(module).values() if isinstance(api, Api)]

API_BY_KEY: dict[int, Api] = {api.key: api for api in sorted(_APIS, key=lambda api: api.key)}
