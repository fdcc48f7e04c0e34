"""Each host has one form, and equal texts alone are equal hosts."""

import ipaddress

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest

from k2jax.agents.egress.allow_list import AllowList, Destination, asked_hosts, is_host, parse_place
from k2jax.errors import UserError

NO_HOSTS = """ UPPER.example example.org. .example.org example..org -a.example a-.example *.example.org * a_b.example
 exämple.org example.org:0 example.org:080 example.org:65536 example.org:x example.org: :80 user@example.org
 example.org/path 127.1 127.0.0.01 0177.0.0.1 0x7f000001 0x7f.0.0.1 2130706433 1.2.3.256 1.2.3.4. a.0x1f example.1
 [::1%lo] [::1]x ::1 [0:0::1] [::ffff:127.0.0.1%25eth0] [1.2.3.4] [] [::G] [FE80::1] 127.0.0.1%00"""


@pytest.mark.parametrize("text", [*NO_HOSTS.split(" "), "a" * 64, "a." * 127 + "aa", "example.org\n", "\0", "a b"])
def test_another_form_of_a_host_is_none(text):
    with pytest.raises(UserError, match="is no host"):
        parse_place(text.strip(" "))


def test_hosts_are_read_with_their_ports():
    read = {text: parse_place(text) for text in ("a.example", "a.example:8080", "xn--exmple-cua.org", "127.0.0.1:1")}
    assert list(read.values()) == [
        ("a.example", None), ("a.example", 8080), ("xn--exmple-cua.org", None), ("127.0.0.1", 1),
    ]  # fmt: skip
    assert parse_place("[2001:db8::1]:80") == ("2001:db8::1", 80) and parse_place("[::1]") == ("::1", None)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 2**128 - 1))
def test_of_every_address_the_usual_form_alone_is_a_host(four, six):
    address = ipaddress.IPv4Address(four)
    parts = str(address).split(".")
    others = [str(four), hex(four), f"{oct(four)[2:]:0>11}", ".".join(hex(int(part)) for part in parts)]
    others += [".".join(f"{int(part):04o}" for part in parts), f"{parts[0]}.{four & 0xFFFFFF}"]
    assert is_host(str(address)) and not [text for text in others if is_host(text)]
    inside = ipaddress.IPv6Address(six)
    others = [inside.exploded, str(inside).upper(), f"{inside}%1"]
    assert is_host(f"[{inside}]")
    assert not [text for text in others if text != str(inside) and is_host(f"[{text}]")]


def test_a_user_allows_requests_and_tunnels_host_by_host():
    allowed = AllowList.of_user(("a.example", "https://b.example", "http://c.example:8080", "[::1]"))
    for there in (("a.example", 80, False), ("b.example", 443, True), ("c.example", 8080, False), ("::1", 80, False)):
        assert Destination(*there) in allowed
    for missing in (("a.example", 443, True), ("a.example", 8080, False), ("b.example", 80, False),
                    ("c.example", 80, False), ("sub.a.example", 80, False), ("example", 80, False)):  # fmt: skip
        assert Destination(*missing) not in allowed
    for text in ("ftp://a.example", "HTTP://a.example", "https://*.example", "http://a.example/x", ""):
        with pytest.raises(UserError, match="is no host"):
            AllowList.of_user((text,))


def test_a_task_reaches_what_it_asks_for_of_what_the_user_allows():
    allowed = AllowList.of_user(("a.example", "https://a.example", "a.example:81", "b.example"))
    assert Destination("a.example", 443, True) in allowed.chosen(("a.example",))
    narrow = allowed.chosen(("a.example:81",))
    assert Destination("a.example", 81, False) in narrow and Destination("a.example", 80, False) not in narrow
    assert Destination("b.example", 80, False) not in narrow
    for asked in ("c.example", "a.example:82", "b.example:443"):
        with pytest.raises(
            UserError, match=rf"host '{asked}', which is not allowed; allow it with --hosts=.*rl\.hosts"
        ):
            allowed.chosen(("a.example", asked))
    with pytest.raises(UserError, match="not allowed"):
        AllowList().chosen(("a.example",))


@pytest.mark.parametrize("hosts", ["a.example", {"a.example": 1}, [1], ["*.example"], ["a.example"] * 101, None])
def test_what_is_no_list_of_hosts_in_a_task_is_refused(hosts):
    with pytest.raises(UserError, match=r"^[^\n]{1,250}$"):
        asked_hosts({"hosts": hosts})
    assert asked_hosts({}) == () and asked_hosts({"hosts": ["a.example:80"]}) == ("a.example:80",)
