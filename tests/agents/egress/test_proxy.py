"""Listed hosts are reached, names and addresses alike, and nothing else; everything is bounded and logged."""

import asyncio
import contextlib
import os
import stat

import pytest

from k2jax.agents.egress import proxy as proxies
from k2jax.agents.egress.allow_list import AllowList, Destination
from k2jax.agents.egress.egress_log import EGRESS, MOST_ENTRIES, EgressEntry, EgressLog
from k2jax.agents.egress.resolver import PinnedResolver, look_up
from tests.agents.egress.origins import HELLO, OriginHost, ask, get, logged, named, proxied, status

PRIVATE = """127.0.0.1 127.8.8.8 10.1.2.3 172.16.0.1 192.168.1.1 169.254.169.254 100.64.0.1 0.0.0.0 224.0.0.1
255.255.255.255 198.18.0.1 168.63.129.16 192.0.0.192 ::1 :: fe80::1 fe80::1%eth0 fc00::1 fd00:ec2::254 ff02::1
::ffff:10.0.0.1 ::ffff:1.1.1.1 64:ff9b::a9fe:a9fe 64:ff9b::101:101 2002:101:101:: 2001:0:53aa:64c:: 2001:db8::1"""


async def test_listed_hosts_are_reached_by_name_and_by_address_and_others_are_not(monkeypatch):
    asked = named(monkeypatch, a_example=["127.0.0.1"], b_example=["127.0.0.1"])
    async with OriginHost().at() as there, OriginHost().at("127.0.0.2", there.port) as elsewhere:
        port = there.port
        async with proxied([f"a.example:{port}", f"127.0.0.1:{port}"]) as proxy:
            urls = [f"http://{host}:{port}/x?y=1" for host in ("a.example", "127.0.0.1", "b.example", "127.0.0.2")]
            urls += [f"http://a.example:{port + 1}/", "http://127.0.0.1/", f"http://sub.a.example:{port}/"]
            answers = [await ask(proxy, url) for url in urls]
            head = await ask(proxy, get(f"http://a.example:{port}/h", "HEAD"))
    assert [status(answer) for answer in answers] == [200, 200, 403, 403, 403, 403, 403]
    assert answers[0].endswith(b"\r\n\r\nhello") and b"content-length: 5" in head.lower() and head.endswith(b"\r\n\r\n")
    assert [line.partition(b"\r\n")[0] for line in there.asked] == [b"GET /x?y=1 HTTP/1.1"] * 2 + [b"HEAD /h HTTP/1.1"]
    assert f"Host: a.example:{port}\r\n".encode().lower() in there.asked[0].lower()
    assert elsewhere.asked == [] and asked == ["a.example"]
    entries = logged(proxy)["requests"]
    first = {"method": "GET", "host": "a.example", "port": port, "path": "/x?y=1", "status": 200, "reason": ""}
    assert entries[0] | first == entries[0] and entries[0]["received"] == len(HELLO)
    assert entries[0]["sent"] == len(there.asked[0]) and entries[2]["sent"] == 0
    assert [(entry["host"], entry["port"]) for entry in entries[2:4]] == [("b.example", port), ("127.0.0.2", port)]
    assert all("may not be reached" in entry["reason"] for entry in entries[2:7])


async def test_a_name_keeps_its_first_addresses(monkeypatch):
    """Whoever owns the name answers first with the listed address, then with another one of this machine."""
    asked = named(monkeypatch, a_example=[["127.0.0.1"], ["127.0.0.2"]])
    async with OriginHost().at() as there, OriginHost().at("127.0.0.2", there.port) as elsewhere:
        listed = [f"a.example:{there.port}", f"127.0.0.1:{there.port}", f"127.0.0.2:{there.port}"]
        async with proxied(listed) as proxy:
            for _ in range(3):
                assert status(await ask(proxy, f"http://a.example:{there.port}/")) == 200
    assert (len(there.asked), elsewhere.asked, asked) == (3, [], ["a.example"])


@pytest.mark.parametrize("address", PRIVATE.split())
async def test_a_name_of_an_address_that_is_not_public_is_not_reached(address, monkeypatch):
    named(monkeypatch, a_example=[address])
    async with OriginHost().at() as there, proxied([f"a.example:{there.port}", "127.0.0.1:1"]) as proxy:
        assert status(await ask(proxy, f"http://a.example:{there.port}/")) == 403
        assert status(await ask(proxy, f"http://a.example:{there.port}/")) == 403
    assert there.asked == [] and "no public address" in logged(proxy)["requests"][0]["reason"]


async def test_public_addresses_are_taken_and_private_ones_where_the_user_names_them():
    calls = []

    async def lookup(host):
        calls.append(host)
        if len(calls) == 1:
            raise OSError("try again")
        return ["1.1.1.1", "10.0.0.5", "2606:4700::1111", "10.0.0.6", "1.1.1.1"]

    resolver = PinnedResolver(AllowList.of_user(("10.0.0.5:81", "https://10.0.0.5:80")), lookup)
    with pytest.raises(OSError, match="try again"):
        await resolver.addresses(Destination("a.example", 80, False))
    public = ["1.1.1.1", "2606:4700::1111"]
    assert await resolver.addresses(Destination("a.example", 80, False)) == public
    assert await resolver.addresses(Destination("a.example", 81, False)) == ["1.1.1.1", "10.0.0.5", "2606:4700::1111"]
    assert await resolver.addresses(Destination("10.0.0.9", 80, False)) == ["10.0.0.9"] and len(calls) == 2


async def test_a_redirect_is_passed_on_and_asked_for_again():
    async with OriginHost().at("127.0.0.2") as elsewhere:
        target = f"http://127.0.0.2:{elsewhere.port}/x"
        moved = f"HTTP/1.1 302 Found\r\nLocation: {target}\r\nContent-Length: 0\r\n\r\n".encode()
        async with OriginHost(moved).at() as there, proxied([f"127.0.0.1:{there.port}"]) as proxy:
            answer = await ask(proxy, f"http://127.0.0.1:{there.port}/")
            assert status(answer) == 302 and target.encode() in answer
            assert status(await ask(proxy, target)) == 403
    assert elsewhere.asked == []


async def test_names_are_resolved_as_this_machine_does():
    found = await look_up("localhost")
    assert "127.0.0.1" in found and set(found) <= {"127.0.0.1", "::1"}


async def test_hosts_that_do_not_answer_are_named(monkeypatch):
    named(monkeypatch)
    async with OriginHost().at() as there:
        pass
    async with proxied([f"127.0.0.1:{there.port}", "a.example"]) as proxy:
        closed = await ask(proxy, f"http://127.0.0.1:{there.port}/")
        unknown = await ask(proxy, "http://a.example/")
    assert status(closed) == status(unknown) == 502
    assert b"does not answer" in closed and b"cannot be resolved" in unknown


async def endless(reader, writer):
    """Sends without an end."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(b"x" * 10_000)
        await writer.drain()


async def silent(reader, writer):
    """Says nothing until the client goes."""
    await reader.read()


async def test_bytes_are_bounded_for_all_requests_together():
    async with OriginHost(endless).at() as there, proxied([f"127.0.0.1:{there.port}"], received=300_000) as proxy:
        url = f"http://127.0.0.1:{there.port}/"
        first, second = await ask(proxy, url), await ask(proxy, url)
    assert status(first) == 200 and 100_000 < len(first) < 400_000 and not first.endswith(b"0\r\n\r\n")
    assert status(second) == 429
    assert all("received 300,000 bytes" in entry["reason"] for entry in logged(proxy)["requests"])
    async with OriginHost().at() as there, proxied([f"127.0.0.1:{there.port}"], sent=250) as proxy:
        url = f"http://127.0.0.1:{there.port}/{'x' * 100}"
        assert [status(await ask(proxy, url)) for _ in range(2)] == [200, 429] and len(there.asked) == 1


async def test_requests_and_connections_are_bounded():
    async with OriginHost(silent).at() as there, proxied([f"127.0.0.1:{there.port}"], connections=3) as proxy:
        url = f"http://127.0.0.1:{there.port}/"
        held = [asyncio.create_task(ask(proxy, url)) for _ in range(3)]
        while len(there.asked) < 3:
            await asyncio.sleep(0.005)
        assert await ask(proxy, url) == b"" and len(there.asked) == 3
        await proxy.close()
        assert await asyncio.gather(*held) == [b""] * 3
    reasons = [entry["reason"] for entry in logged(proxy)["requests"]]
    assert sorted(reasons) == ["the sandbox was closed"] * 3 + ["too many connections at a time"]
    async with OriginHost().at() as there, proxied([f"127.0.0.1:{there.port}"], requests=3) as proxy:
        url = f"http://127.0.0.1:{there.port}/"
        assert [status(await ask(proxy, url)) for _ in range(3)] == [200] * 3
        with pytest.raises(ConnectionRefusedError):
            await ask(proxy, url)


async def test_all_proxies_together_have_so_many_connections(monkeypatch):
    monkeypatch.setattr(proxies, "_MOST_CONNECTIONS", 1)
    async with OriginHost(silent).at() as there:
        listed = [f"127.0.0.1:{there.port}"]
        async with proxied(listed) as one, proxied(listed) as other:
            held = asyncio.create_task(ask(one, f"http://{listed[0]}/"))
            while not there.asked:
                await asyncio.sleep(0.005)
            assert await ask(other, f"http://{listed[0]}/") == b""
            await one.close()
            await held
    assert logged(other)["requests"][0]["reason"] == "too many connections at a time"


async def test_a_request_and_all_of_them_end_in_time():
    async with OriginHost(silent).at() as there, proxied([f"127.0.0.1:{there.port}"], seconds=0.1) as proxy:
        assert status(await ask(proxy, f"http://127.0.0.1:{there.port}/")) == 504
    [entry] = logged(proxy)["requests"]
    assert entry["reason"] == "it takes too long" and 0.1 <= entry["seconds"] < 5
    async with OriginHost().at() as there, proxied([f"127.0.0.1:{there.port}"], total_seconds=0.05) as proxy:
        await asyncio.sleep(0.06)
        assert status(await ask(proxy, f"http://127.0.0.1:{there.port}/")) == 504 and there.asked == []


async def test_a_client_that_goes_and_one_that_reads_nothing_hold_nothing():
    async with OriginHost(endless).at() as there, proxied([f"127.0.0.1:{there.port}"], seconds=0.2) as proxy:
        socket = str(proxy.folder / proxy.socket)
        writers = [(await asyncio.open_unix_connection(socket))[1] for _ in range(2)]
        for writer in writers:
            writer.write(get(f"http://127.0.0.1:{there.port}/"))
        await asyncio.sleep(0.05)
        writers[0].transport.abort()
        while len(proxy.log._entries) < 2:
            await asyncio.sleep(0.01)
        writers[1].transport.abort()
    assert sorted(entry["reason"].partition(":")[0] for entry in logged(proxy)["requests"]) == [
        "it takes too long", "the connection broke",
    ]  # fmt: skip


async def test_two_episodes_do_not_see_each_other_s_proxy():
    async with OriginHost().at() as one, OriginHost().at() as other:
        first, second = (f"127.0.0.1:{origin.port}" for origin in (one, other))
        async with proxied([first, second], [first]) as left, proxied([first, second], [second]) as right:
            assert left.folder.parent != right.folder.parent
            assert stat.S_IMODE(left.folder.parent.stat().st_mode) == 0o700 and os.listdir(left.folder) == ["proxy"]
            assert [status(await ask(left, f"http://{each}/")) for each in (first, second)] == [200, 403]
            assert [status(await ask(right, f"http://{each}/")) for each in (first, second)] == [403, 200]
            await left.close()
            assert status(await ask(right, f"http://{second}/")) == 200
    assert not left.folder.parent.exists() and not right.folder.parent.exists()


def test_a_log_is_bounded_and_goes_on_where_an_episode_begins_anew():
    metadata = {}
    for count in (2, MOST_ENTRIES + 5):
        log = EgressLog(["a.example"])
        for number in range(count):
            log.add(EgressEntry(at=number, method="GET", path="/" + "x" * 1000, reason="y" * 1000))
        log.add_to(metadata)
        assert len(log._entries) <= MOST_ENTRIES and max(map(len, map(str, log._entries))) < 1000
    kept = metadata[EGRESS]
    assert (len(kept["requests"]), kept["dropped"], kept["sandboxes"]) == (MOST_ENTRIES, 7, 2)
    assert [entry["sandbox"] for entry in kept["requests"][:4]] == [0, 0, 1, 1] and kept["hosts"] == ["a.example"]
    assert all(len(entry[name]) == 200 for entry in kept["requests"] for name in ("path", "reason"))


async def test_hostile_hosts_do_not_hold_the_event_loop():
    """One byte a chunk: others have their turn between two of them."""

    async def tiny(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 2000 + b"0\r\n\r\n")
        await writer.drain()

    turns = 0

    async def watch():
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with OriginHost(tiny).at() as there, proxied([f"127.0.0.1:{there.port}"]) as proxy:
        watching = asyncio.create_task(watch())
        answer = await ask(proxy, f"http://127.0.0.1:{there.port}/")
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
    assert answer.count(b"x\r\n") == 2000 and turns > 2000
