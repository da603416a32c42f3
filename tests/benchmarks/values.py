"""Generate keys and values for topics: deterministic JSON like orders or events."""

from __future__ import annotations

import random

DIFFERENT_VALUES = 5_000


def order_values(value_bytes: int) -> list[bytes]:
    """Return different values of one length: JSON like an order, with random but reproducible numbers."""
    draw = random.Random(7)
    values = []
    for _ in range(DIFFERENT_VALUES):
        text = f'{{"order":{draw.randrange(10**9)},"customer":{draw.randrange(10**6)}'
        while len(text) < value_bytes - 1:
            text += f',"sku-{draw.randrange(10**4)}":{draw.random() * 100:.2f}'
        values.append((text[: value_bytes - 1] + "}").encode())
    return values


def event_values(value_bytes: int) -> list[bytes]:
    """Return different JSON values like clicks in a shop, `value_bytes` long on average; reproducible."""
    draw = random.Random(7)
    kinds = ("view", "click", "add_to_cart", "checkout", "search")
    values = []
    for _ in range(DIFFERENT_VALUES):
        user, kind = draw.randrange(10 ** draw.randrange(3, 7)), draw.choice(kinds)
        text = f'{{"user":{user},"event":"{kind}","amount":{draw.random() * 10 ** draw.randrange(1, 4):.2f},"page":"/'
        until = draw.randrange(value_bytes * 3 // 4, value_bytes * 5 // 4)
        while len(text) < until - 2:
            text += f"{draw.choice(kinds)}/{draw.randrange(10 ** draw.randrange(1, 5))}/"
        values.append((text + '"}').encode())
    return values


def event_keys() -> list[bytes]:
    """Return `DIFFERENT_VALUES` keys of 5 to 10 bytes."""
    draw = random.Random(8)
    return [b"user%d" % draw.randrange(10 ** draw.randrange(1, 7)) for _ in range(DIFFERENT_VALUES)]
