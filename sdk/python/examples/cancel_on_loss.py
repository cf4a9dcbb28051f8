"""Work that ends when its lock is lost: here, because an operator revokes it."""

import asyncio

import leasehold
import leasehold.aio


async def work() -> None:
    while True:
        await asyncio.sleep(0.1)


async def main() -> None:
    async with leasehold.aio.connect() as locks:
        try:
            async with locks.mutex("example/cancel", ttl=1):
                await locks.revoke("example/cancel")
                await work()
        except leasehold.Lost as lost:
            print(f"the work was cancelled: {lost.reason}")


asyncio.run(main())
