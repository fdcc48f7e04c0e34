"""URLs are allowed by their parts: nothing that two programs could read in two ways is."""

import pytest

from k2jax.data.images.urls import allowed_beginning, is_allowed, parse_url, urls_of_hosts
from tests.refusal import refused

DEEP = "https://example.com/a/b"
INSIDE = {
    DEEP: [
        *("https://example.com/a/b", "https://EXAMPLE.com:443/a/b/c", "HTTPS://example.com/%61/b/c?d=../e"),
        *("https://example.com/a/b/", "https://example.com/a/b?c", "https://example.com/a/b/c#/../d"),
        *("https://example.com/a/b//c", "https://example.com/a/b/c..d/...", "https://example.com/a/b/c%2Fd"),
    ],
    "http://example.com": ["http://example.com", "http://example.com:80/a%2Fb", "http://example.com?a"],
    "http://[::1]:8080/": ["http://[0:0:0:0:0:0:0:1]:8080/a"],
    "s3://bucket/a/": ["s3://bucket/a/b", "S3://bucket/a/b?c#d", "s3://bucket/a/%20/\u00e9 f"],
    "gs://bucket": ["gs://bucket/a", "gs://bucket/a/b"],
}
OUTSIDE = {
    DEEP: [
        *("http://example.com/a/b", "https://evil.org/a/b", "https://sub.example.com/a/b", "https://example.com./a/b"),
        *("https://example.com.evil.org/a/b", "https://example.com@evil.org/a/b", "https://evil.org#@example.com/a/b"),
        *("https://example.com:443@evil.org/a/b", "https://evil.org?@example.com/a/b", "https://evil.org\\@example.com/a/b"),
        *("https://example.com%00.evil.org/a/b", "https://example.com%2f@evil.org/a/b", "https://user@example.com/a/b"),
        *("https://example.com:8443/a/b", "https://example.com:/a/b", "https://example.com:0/a/b", "https://example.com:x/a/b"),
        *("https:example.com/a/b", "https:/example.com/a/b", "https:///example.com/a/b", "//example.com/a/b", ""),
        *("https://example.com", "https://example.com/a", "https://example.com/a/bc", "https://example.com//a/b"),
        *("https://example.com/A/b", "https://example.com/a%2Fb/c", "https://example.com/a;/b", "https://example.com/?/a/b"),
        *("https://example.com/a/b/../c", "https://example.com/a/b/.", "https://example.com/a/b/%2e%2E/c"),
        *("https://example.com/a/b/%252e%252e/c", "https://example.com/a/b/..%2fc", "https://example.com/a/b/..%5cc"),
        *("https://example.com/a/b/..;x=y/c", "https://example.com/a/b/%2e%2e%3bx/c", "https://example.com/a/b\\..\\..\\c"),
        *("https://ex\u0430mple.com/a/b", "https://example\u3002com/a/b", "https://example.com/a/b\n"),
        *("https://example.com/a/b c", "https://exam\nple.com/a/b", "\thttps://example.com/a/b", "https://example.com/a/b\0"),
        *(f"{DEEP}\x7f", f"{DEEP}/{'c' * 9000}", f"{DEEP}/%{'25' * 3000}2e", "https://[/a/b", "https://[example.com]/a/b"),
    ],
    "http://example.com": ["https://example.com", "http://example.com/%2e%2e/a"],
    "http://[::1]:8080/": ["http://[::1]/a", "http://[::1%25lo]:8080/a", "http://127.0.0.1:8080/a", "http://::1:8080/a"],
    "s3://bucket/a/": [
        *("gs://bucket/a/b", "s3://bucket/ab", "s3://other/a/b", "s3://bucket@other/a", "s3://bucket:80/a", "s3:///bucket/a"),
        *("s3://bucket/a/../b", "s3://bucket/a/%2e%2e/b", "s3://bucket/a\\..\\b", "s3://bucket/a/b?/../../c", "s3://bucket//a/b"),
        *("s3://bucket/a::b/c", "s3://bucket/a/b\n", "s3://BUCKET/a/b", "s3a://bucket/a/b", "simplecache::s3://bucket/a/b"),
    ],
    "gs://bucket": ["gs://bucket2/a", "gs://a/bucket/b", "gcs://bucket/a", "gs://bucket.a/b", "gs://"],
}  # fmt: skip


@pytest.mark.parametrize("beginning", INSIDE)
def test_what_begins_as_a_listed_url_is_allowed_and_nothing_else(beginning):
    listed = [allowed_beginning(beginning)]
    for text in INSIDE[beginning]:
        assert is_allowed(parse_url(text), listed), text
    for text in OUTSIDE[beginning]:
        try:
            assert not is_allowed(parse_url(text), listed), text
        except ValueError as error:
            assert str(error).isprintable()


def test_a_url_is_opened_as_it_was_compared():
    url = parse_url("HTTP://Example.com:8080/a%20b;c?d=/../e#f")
    assert url.target == "/a%20b;c?d=/../e" and url.origin == "http://example.com:8080" and url.is_web
    assert parse_url("https://[::0001]?a").target == "/?a" and parse_url("https://[::0001]").origin == "https://[::1]"
    store = parse_url("s3://bucket/a b/%20?c#d")
    assert store.target == "a b/%20?c#d" and store.origin == "s3://bucket" and not store.is_web


def test_hosts_are_listed_with_their_ports():
    urls = urls_of_hosts(["example.com", "example.com:8080", "[::1]:80"])
    assert is_allowed(parse_url("https://example.com/a"), urls) and is_allowed(parse_url("http://[::1]/a"), urls)
    assert not is_allowed(parse_url("https://example.com:8081/a"), urls)
    for host in ("example.com/a", "user@example.com", "http://example.com", "a b", "", "::1"):
        with refused(r"no host of images: .*; write HOST or HOST:PORT"):
            urls_of_hosts([host])
