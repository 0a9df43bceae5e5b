import socket

import pytest
from linkchecker.targets import MAX_URL_LENGTH, Policy, Refused, locate, why_closed

PUBLIC = ["93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946"]


def no_lookup(host: str, port: int) -> list[str]:
    raise AssertionError(f"{host} was looked up")


def lookup(*addresses: str):
    return lambda host, port: list(addresses)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.8.8.8",
        "::1",
        "10.1.2.3",
        "172.16.0.1",
        "172.31.255.254",
        "192.168.1.1",
        "169.254.169.254",
        "fe80::1",
        "fe80::1%eth0",
        "100.64.0.1",
        "100.100.100.200",
        "0.0.0.0",
        "0.1.2.3",
        "::",
        "224.0.0.1",
        "239.255.255.250",
        "ff02::1",
        "240.0.0.1",
        "255.255.255.255",
        "192.0.0.1",
        "192.0.2.1",
        "198.18.0.1",
        "198.51.100.1",
        "203.0.113.1",
        "192.88.99.1",
        "168.63.129.16",
        "fc00::1",
        "fd00:ec2::254",
        "fec0::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "::ffff:a9fe:a9fe",
        "::127.0.0.1",
        "64:ff9b::7f00:1",
        "64:ff9b::808:808",
        "64:ff9b:1::1",
        "2002:7f00:1::",
        "2001:0:4136:e378:8000:63bf:3fff:fdd2",
        "2001:db8::1",
        "100::1",
        "not an address",
    ],
)
def test_address_that_is_not_public_is_closed(address: str) -> None:
    assert why_closed(address)


@pytest.mark.parametrize("address", [*PUBLIC, "8.8.8.8", "::ffff:8.8.8.8", "172.32.0.1", "100.128.0.1"])
def test_public_address_is_open(address: str) -> None:
    assert why_closed(address) is None


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://127.0.0.1/", "loopback"),
        ("http://[::1]/", "loopback"),
        ("http://[::ffff:127.0.0.1]/", "loopback"),
        ("http://10.0.0.1/", "private"),
        ("http://169.254.169.254/latest/meta-data/", "link-local"),
        ("http://0.0.0.0/", "unspecified"),
        ("http://2130706433/", "numeric host"),
        ("http://0x7f000001/", "numeric host"),
        ("http://0x7f.1/", "numeric host"),
        ("http://0177.0.0.1/", "numeric host"),
        ("http://127.1/", "numeric host"),
        ("http://127.0.0.1./", "loopback"),
        ("http://１２７.0.0.1/", "loopback"),  # noqa: RUF001 - full-width digits are the point
        ("http://127。0。0。1/", "loopback"),
        ("ftp://example.com/", "only http"),
        ("file:///etc/passwd", "only http"),
        ("gopher://127.0.0.1:6379/_INFO", "only http"),
        ("javascript:alert(1)", "only http"),
        ("example.com", "only http"),
        ("//example.com/", "only http"),
        ("http://user:pass@example.com/", "user name"),
        ("http://example.com@127.0.0.1/", "user name"),
        ("http://@example.com/", "user name"),
        ("http://example.com\\@127.0.0.1/", "backslash"),
        ("http://exa mple.com/", "space"),
        ("http://example.com/\r\nHost: internal", "control"),
        ("http://example.com/\x00", "control"),
        ("http://example.com:22/", "port 22"),
        ("http://example.com:0/", "port 0"),
        ("http://example.com:99999/", "not a valid URL"),
        ("http://example.com:eighty/", "not a valid URL"),
        ("http://[::1/", "not a valid URL"),
        ("http://[fe80::1%25eth0]/", "not a valid"),
        ("http:///path", "not a valid host"),
        ("http://", "not a valid host"),
        ("http://.example.com/", "not a valid host"),
        ("http://a..b/", "not a valid host"),
        ("http://-a.example/", "not a valid host"),
        ("http://exa<mple.com/", "not a valid host"),
        (f"http://{'a' * 64}.example/", "not a valid host"),
        (f"http://{'a.' * 130}example/", "not a valid host"),
        ("http://xn--\u00df\u0300\u05d0a/", "not a valid host"),
        (f"http://example.com/{'a' * MAX_URL_LENGTH}", "longer than"),
    ],
)
def test_bad_target_is_refused_without_a_lookup(url: str, reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        locate(url, Policy(), no_lookup)


def test_name_with_one_private_address_among_public_ones_is_refused() -> None:
    with pytest.raises(Refused, match=r"private address \(10\.0\.0\.7\)"):
        locate("http://example.com/", Policy(), lookup(*PUBLIC, "10.0.0.7"))


def test_name_without_any_address_is_refused() -> None:
    with pytest.raises(Refused, match="no address"):
        locate("http://example.com/", Policy(), lookup())


def test_lookup_failure_reaches_the_caller() -> None:
    def fails(host: str, port: int) -> list[str]:
        raise socket.gaierror(socket.EAI_NONAME, "unknown")

    with pytest.raises(socket.gaierror):
        locate("http://example.com/", Policy(), fails)


def test_target_carries_the_checked_addresses_and_a_clean_request_path() -> None:
    target = locate("HTTPS://Bücher.example/ü/%20?q=ä b".replace(" b", "b") + "#part", Policy(), lookup(*PUBLIC))
    assert target.addresses == tuple(PUBLIC)
    assert (target.scheme, target.host, target.port) == ("https", "xn--bcher-kva.example", 443)
    assert target.path == "/%C3%BC/%20?q=%C3%A4b"
    assert target.url == "https://xn--bcher-kva.example/%C3%BC/%20?q=%C3%A4b"


def test_exemption_holds_for_exactly_one_address_and_port() -> None:
    policy = Policy(exempt=frozenset({("127.0.0.1", 9100)}))
    assert locate("http://127.0.0.1:9100/", policy, no_lookup).addresses == ("127.0.0.1",)
    for other in ("http://127.0.0.1:9101/", "http://127.0.0.2:9100/", "http://127.0.0.1:8080/", "http://[::1]:9100/"):
        with pytest.raises(Refused):
            locate(other, policy, no_lookup)


def test_name_that_resolves_to_the_exempt_address_is_still_refused() -> None:
    policy = Policy(ports=frozenset({9100}), exempt=frozenset({("127.0.0.1", 9100)}))
    with pytest.raises(Refused, match="loopback"):
        locate("http://localhost:9100/", policy, lookup("127.0.0.1"))
