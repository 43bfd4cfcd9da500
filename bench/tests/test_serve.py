"""The clients of ``bench serve`` against a server whose answers are known, and its options."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from mha_native_bench.command_line import main
from mha_native_bench.serve.clients import Answers, closed_loop, open_loop


def against(statuses: list[int], seconds: float, run: Callable[[str], Awaitable[Answers]]) -> Answers:
    """Run clients against a server that answers with these statuses in turns, each after some seconds."""
    given = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal given
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                await reader.readexactly(int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0]))
                status, given = statuses[given % len(statuses)], given + 1
                await asyncio.sleep(seconds)
                if given % 2:
                    writer.write(b"HTTP/1.1 %d X\r\ncontent-length: 2\r\n\r\n{}" % status)
                else:
                    writer.write(b"HTTP/1.1 %d X\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n" % status)
        except asyncio.IncompleteReadError:
            writer.close()
            await writer.wait_closed()

    async def both() -> Answers:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            return await run(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")

    return asyncio.run(both())


def test_closed_and_open_loops() -> None:
    found = against([200], 0.02, lambda url: closed_loop(url, "/a", [b"{}"], 4, 0.3))
    assert found.quantile(0.5) >= 0.02
    assert 4 / found.seconds <= found.rate <= 4 / 0.02
    assert 1.5 < sum(found.times) / found.seconds <= 4  # clients that ask at once, also where this process has to wait
    found = against([200, 429], 0.05, lambda url: open_loop(url, "/a", [b"{}"], 200, 0.4))
    assert 30 < len(found.statuses) < 160  # 80 on average: more than the answers of a few clients in turns
    assert {200, 429} == set(found.statuses)
    assert len(found.good) in (len(found.statuses) // 2, (len(found.statuses) + 1) // 2)


@pytest.mark.parametrize(
    ("arguments", "word"), [([], "--model"), (["--peer", "other"], "llama-cpp-python"), (["--rounds", "0"], "rounds")]
)
def test_mistakes_of_the_user(arguments: list[str], word: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(["serve", *arguments])
    except SystemExit as error:
        code = int(error.code or 0)
    assert code == 2
    assert word in capsys.readouterr().err
