"""Generate keys and values for topics: deterministic JSON like orders or events."""

from __future__ import annotations

import random

DIFFERENT_VALUES = 5_000


def order_values(value_bytes: int) -> list[bytes]:
    """Return different values of one length: JSON like an order, with random but reproducible numbers."""
    rng = random.Random(7)
    values = []
    for _ in range(DIFFERENT_VALUES):
        text = f'{{"order":{rng.randrange(10**9)},"customer":{rng.randrange(10**6)}'
        while len(text) < value_bytes - 1:
            text += f',"sku-{rng.randrange(10**4)}":{rng.random() * 100:.2f}'
        values.append((text[: value_bytes - 1] + "}").encode())
    return values


def event_values(value_bytes: int) -> list[bytes]:
    """Return different JSON values like clicks in a shop, `value_bytes` long on average; reproducible."""
    rng = random.Random(7)
    kinds = ("view", "click", "add_to_cart", "checkout", "search")
    values = []
    for _ in range(DIFFERENT_VALUES):
        user, kind = rng.randrange(10 ** rng.randrange(3, 7)), rng.choice(kinds)
        text = f'{{"user":{user},"event":"{kind}","amount":{rng.random() * 10 ** rng.randrange(1, 4):.2f},"page":"/'
        until = rng.randrange(value_bytes * 3 // 4, value_bytes * 5 // 4)
        while len(text) < until - 2:
            text += f"{rng.choice(kinds)}/{rng.randrange(10 ** rng.randrange(1, 5))}/"
        values.append((text + '"}').encode())
    return values


def event_keys() -> list[bytes]:
    """Return `DIFFERENT_VALUES` keys of 5 to 10 bytes."""
    rng = random.Random(8)
    return [b"user%d" % rng.randrange(10 ** rng.randrange(1, 7)) for _ in range(DIFFERENT_VALUES)]
