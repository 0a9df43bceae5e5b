"""Which addresses the checker may talk to. No Django here.

A link checker fetches what strangers type, from inside your network: without these rules it would be a door to the
database, the cloud's metadata service and everything else that trusts this machine.

The rules hold for the first URL and again for every redirect:

1. http or https, no credentials, an allowed port, a host name that is spelled plainly.
2. The name is resolved once. If *any* of its addresses is not public, the target is refused.
3. The connection goes to one of the addresses just checked, never through a second look-up (`fetching.py`).
"""

import ipaddress
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import quote, urlsplit

MAX_URL_LENGTH = 2000

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolver = Callable[[str, int], list[str]]

# Public by their number, but not by what answers there: translation prefixes that reach IPv4 hosts behind our back,
# documentation, benchmark and retired ranges, and the fixed address of one cloud's instance service.
_CLOSED_NETWORKS = tuple(
    ipaddress.ip_network(text)
    for text in (
        "0.0.0.0/8",
        "100.64.0.0/10",
        "168.63.129.16/32",
        "192.0.0.0/24",
        "192.88.99.0/24",
        "198.18.0.0/15",
        "64:ff9b::/96",
        "64:ff9b:1::/48",
        "100::/64",
        "2001::/32",
        "2001:db8::/32",
        "2002::/16",
        "3fff::/20",
        "5f00::/16",
        "fec0::/10",
    )
)
_HOST_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_UNSAFE_CHARACTER = re.compile(r"[\x00-\x20\x7f\\]")


class Refused(Exception):
    """The target breaks a rule. The message says which, in words for the person who typed the link."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    ports: frozenset[int] = frozenset({80, 443, 8080, 8443})
    # (IP address, port) pairs that skip rule 2. The demo lists its own downstream server here, nothing else.
    exempt: frozenset[tuple[str, int]] = field(default_factory=frozenset)


@dataclass(frozen=True, kw_only=True)
class Target:
    """One URL that passed the rules, with the addresses that were checked."""

    scheme: str
    host: str
    port: int
    path: str
    addresses: tuple[str, ...]

    @property
    def netloc(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == {"http": 80, "https": 443}[self.scheme] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.netloc}{self.path}"


def system_resolver(host: str, port: int) -> list[str]:
    # getaddrinfo cannot be given a time limit; the system's resolver configuration bounds it. Until it returns, the
    # job's worker counts as busy and a cancellation waits.
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def locate(url: str, policy: Policy, resolve: Resolver = system_resolver) -> Target:
    """Apply all rules to `url` and resolve its host.

    Raises Refused for a broken rule, and lets the resolver's OSError through.
    """
    if len(url) > MAX_URL_LENGTH:
        raise Refused(f"longer than {MAX_URL_LENGTH} characters")
    # Before parsing: urlsplit silently drops tabs and line breaks, and browsers read a backslash as a slash.
    if _UNSAFE_CHARACTER.search(url):
        raise Refused("contains a space, backslash or control character")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise Refused("not a valid URL") from None
    if parts.scheme not in ("http", "https"):
        raise Refused("only http:// and https:// links are checked")
    if "@" in parts.netloc:
        raise Refused("contains a user name or password")
    if port is None:
        port = 443 if parts.scheme == "https" else 80
    host = _plain_host(parts.hostname or "")
    exempt = (host, port) in policy.exempt
    if port not in policy.ports and not exempt:
        raise Refused(f"port {port} is not allowed")
    literal = _literal_address(host)
    addresses = [host] if literal else resolve(host, port)
    if not addresses:
        raise Refused("the host has no address")
    if not exempt:
        for address in addresses:
            if reason := why_closed(address):
                raise Refused(f"{reason} ({address})")
    path = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~") + (
        "?" + quote(parts.query, safe="/%:@!$&'()*+,;=~?[]") if parts.query else ""
    )
    return Target(scheme=parts.scheme, host=host, port=port, path=path, addresses=tuple(addresses))


def why_closed(address: str) -> str | None:
    """Why no connection may go to `address`, or None for a public one."""
    try:
        # A scope ("fe80::1%eth0") only ever belongs to a local address.
        number: IPAddress = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return "not an IP address"
    if isinstance(number, ipaddress.IPv6Address) and number.ipv4_mapped:
        number = number.ipv4_mapped
    for name in ("loopback", "link_local", "multicast", "unspecified", "reserved", "private"):
        if getattr(number, f"is_{name}"):
            return f"{name.replace('_', '-')} address"
    if any(number in network for network in _CLOSED_NETWORKS if network.version == number.version):
        return "special-purpose address"
    return None if number.is_global else "address that is not public"


def _plain_host(host: str) -> str:
    """The host in lower-case ASCII, or Refused."""
    if ":" in host:
        if "%" in host or not _literal_address(host):
            raise Refused("not a valid IPv6 address")
        return host
    try:
        # Also turns full-width digits and dots into plain ones, so it must come before the number check below.
        ascii_host = host.encode("idna").decode("ascii").lower().removesuffix(".")
    except UnicodeError:
        raise Refused("not a valid host name") from None
    labels = ascii_host.split(".")
    if len(ascii_host) > 253 or not all(_HOST_LABEL.fullmatch(label) for label in labels):
        raise Refused("not a valid host name")
    # C libraries read 2130706433, 0x7f.1 and 0177.0.0.1 as 127.0.0.1; nobody writes a public address like that.
    if re.fullmatch(r"[0-9]+|0x[0-9a-f]*", labels[-1]) and not _literal_address(ascii_host):
        raise Refused("numeric host that is not a plain IPv4 address")
    return ascii_host


def _literal_address(host: str) -> IPAddress | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
