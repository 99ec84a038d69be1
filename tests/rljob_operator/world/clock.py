"""The world's time: that of a loop whose clock jumps, and whole seconds as Kubernetes writes them."""

import asyncio
from datetime import UTC, datetime, timedelta

START = datetime(2026, 11, 22, 12, tzinfo=UTC)


def seconds() -> float:
    """Since START."""
    return asyncio.get_running_loop().time()


def now() -> datetime:
    return (START + timedelta(seconds=seconds())).replace(microsecond=0)


def stamp(when: datetime) -> str:
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")


async def settle() -> None:
    """Until everybody waits: for a clock or for ever. It takes no time to speak of."""
    await asyncio.sleep(1e-6)
