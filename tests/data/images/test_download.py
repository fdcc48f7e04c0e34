"""Downloads: connected to an address that was looked at, and whole or not at all."""

import socket
import ssl

import pytest

from k2jax.client.addresses import is_public
from k2jax.data.images.download import DownloadLimits, download
from k2jax.data.images.reading import ImageError, MediaUnavailableError
from k2jax.data.images.urls import urls_of_hosts
from tests.data.images.counting import HITS, PNG
from tests.refusal import refused

PRIVATE = """127.0.0.1 10.1.2.3 172.16.0.1 192.168.1.1 169.254.169.254 100.64.0.1 0.0.0.0 224.0.0.1 255.255.255.255
198.18.0.1 168.63.129.16 192.0.0.192 ::1 :: fe80::1 fe80::1%eth0 fc00::1 fd00:ec2::254 fec0::1 ff02::1 ::ffff:10.0.0.1
::ffff:169.254.169.254 ::127.0.0.1 2002:7f00:1:: 64:ff9b::a9fe:a9fe 64:ff9b:1::1 2001:db8::1 2001::1"""
PUBLIC = "1.1.1.1 93.184.215.14 2606:4700::1111 64:ff9b::101:101 ::ffff:1.1.1.1 2002:101:101::"


def fetch(url, *hosts, **limits):
    return download(url, DownloadLimits(urls_of_hosts(hosts), **limits))


def test_addresses_of_ones_own_networks_are_not_public():
    assert not any(map(is_public, PRIVATE.split())) and all(map(is_public, PUBLIC.split()))


def test_what_is_no_whole_file_is_refused_and_what_may_come_later_is_said_to(port):
    host = f"127.0.0.1:{port}"
    assert fetch(f"HTTP://{host}/%61.png?b#c", host) == PNG
    for path, kind, words in (
        ("moved", ImageError, "answers 302, and redirects are not followed"),
        ("gone", ImageError, "answers 404"),
        ("busy", MediaUnavailableError, "answers 503"),
        ("cut", MediaUnavailableError, "the answer is cut off"),
    ):
        with refused(words, kind):
            fetch(f"http://{host}/{path}", host)
    assert set(HITS) == {"/%61.png?b", "/moved", "/gone", "/busy", "/cut"}


def test_a_name_is_resolved_once_and_never_to_an_address_of_ones_own_network(port, monkeypatch):
    names, asked, connected, real = {}, [], [], socket.getaddrinfo

    def resolved(host, *rest, **options):
        """A name is public when it is looked at and private for whoever asks again."""
        asked.append(host)
        addresses = names[host].pop(0) if host in names else [host]
        return [found for address in addresses for found in real(address, *rest, **options)]

    def connect(self, address):
        connected.append(address[0])
        raise ConnectionRefusedError("not in this test")

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    hosts = [f"{host}:{port}" for host in ("rebound.org", "localhost", "127.0.0.1")]
    names |= {"rebound.org": [["127.0.0.1", "::1", "10.0.0.1"]], "localhost": [["10.0.0.1"], ["127.0.0.1"]]}
    for host in ("rebound.org", "localhost"):
        with pytest.raises(ImageError, match=f"{host} has no public address; .* with the machine's address"):
            fetch(f"http://{host}:{port}/a.png", *hosts)
    assert not HITS
    assert fetch(f"http://localhost:{port}/a.png", *hosts) == fetch(f"http://127.0.0.1:{port}/a.png", *hosts) == PNG
    names["rebound.org"] = [["127.0.0.1", "1.1.1.1"], ["127.0.0.1"]]
    asked.clear()
    monkeypatch.setattr(socket.socket, "connect", connect)
    with pytest.raises(MediaUnavailableError, match="not in this test"):
        fetch(f"http://rebound.org:{port}/a.png", *hosts)
    assert asked == ["rebound.org"] and connected == ["1.1.1.1"]


def test_https_is_asked_of_the_host_that_its_certificate_names(port, monkeypatch):
    named, real = [], ssl.SSLContext.wrap_socket

    def wrapped(self, sock, **options):
        named.append((options["server_hostname"], self.check_hostname, self.verify_mode))
        return real(self, sock, **options)

    monkeypatch.setattr(ssl.SSLContext, "wrap_socket", wrapped)
    with pytest.raises(MediaUnavailableError, match="cannot be read from"):
        fetch(f"https://localhost:{port}/a.png", f"localhost:{port}", seconds=5)
    assert named == [("localhost", True, ssl.CERT_REQUIRED)] and not HITS


def test_a_handshake_that_never_ends_ends_in_time(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host = f"127.0.0.1:{silent.getsockname()[1]}"
        for scheme in ("http", "https"):
            with pytest.raises(MediaUnavailableError, match=r"it takes over 0\.2 seconds"):
                fetch(f"{scheme}://{host}/a.png", host, seconds=0.2)
