"""Turn what a person pastes or uploads into a list of links. No Django here.

Two kinds are understood: a plain list (one URL a line, `#` starts a comment) and sitemap XML. XML from strangers is
read without document types and entities, which is where billion-laughs and file-reading tricks live.
"""

# expat is safe here because a document type, and with it every entity declaration, ends the parse.
import xml.parsers.expat as expat
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NoReturn

from .targets import MAX_URL_LENGTH

MAX_BYTES = 1024 * 1024
MAX_LINKS = 2000
MAX_DEPTH = 20


class UnreadableSource(Exception):
    """The text is no list and no sitemap we can read; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Source:
    urls: tuple[str, ...]
    # True for a sitemap index: its URLs are further sitemaps, not pages.
    is_index: bool = False
    # What was left out, in words for the person who gave the list.
    note: str = ""


def read_source(data: bytes) -> Source:
    """Read a list or a sitemap, whichever `data` is."""
    if len(data) > MAX_BYTES:
        raise UnreadableSource("larger than 1 MiB")
    if not data.strip():
        raise UnreadableSource("empty")
    if data.startswith(b"\x1f\x8b"):
        raise UnreadableSource("compressed; unpack it first")
    # A UTF-16 file starts with one of these marks, and a list in UTF-16 is not supported.
    if data.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<") or data.startswith((b"\xff\xfe", b"\xfe\xff")):
        urls, is_index = _read_sitemap(data)
        return _tidy(urls, is_index=is_index)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UnreadableSource("not UTF-8 text") from None
    if "\x00" in text:
        raise UnreadableSource("not a text file")
    lines = (line.strip() for line in text.splitlines())
    return _tidy(line for line in lines if line and not line.startswith("#"))


def _tidy(urls: Iterable[str], *, is_index: bool = False) -> Source:
    kept: dict[str, None] = {}
    repeated = too_long = beyond = 0
    for url in urls:
        if url in kept:
            repeated += 1
        elif len(url) > MAX_URL_LENGTH:
            too_long += 1
        elif len(kept) >= MAX_LINKS:
            beyond += 1
        else:
            kept[url] = None
    if not kept:
        raise UnreadableSource("no links in it")
    notes = []
    if repeated:
        notes.append(f"{repeated} repeated")
    if too_long:
        notes.append(f"{too_long} longer than {MAX_URL_LENGTH} characters")
    if beyond:
        notes.append(f"{beyond} beyond the limit of {MAX_LINKS}")
    return Source(urls=tuple(kept), is_index=is_index, note=f"Left out: {', '.join(notes)}." if notes else "")


def _read_sitemap(data: bytes) -> tuple[list[str], bool]:
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.buffer_text = True
    path: list[str] = []
    urls: list[str] = []
    text: list[str] = []

    def refuse(*_: object) -> NoReturn:
        raise UnreadableSource("XML with a document type or entities is not accepted")

    def start(name: str, _attributes: object) -> None:
        # Attributes and namespaces do not matter: sitemaps in the wild use several.
        path.append(name.rpartition(" ")[2])
        if len(path) > MAX_DEPTH:
            raise UnreadableSource("XML nested too deeply")
        text.clear()

    def end(_name: str) -> None:
        if path in (["urlset", "url", "loc"], ["sitemapindex", "sitemap", "loc"]) and (url := "".join(text).strip()):
            urls.append(url)
        roots.add(path[0])
        path.pop()
        text.clear()

    roots: set[str] = set()
    parser.StartDoctypeDeclHandler = refuse
    parser.EntityDeclHandler = refuse
    parser.ExternalEntityRefHandler = refuse
    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = text.append
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise UnreadableSource(f"not well-formed XML (line {error.lineno})") from None
    except (ValueError, LookupError):
        raise UnreadableSource("XML in an unknown encoding") from None
    if not roots & {"urlset", "sitemapindex"}:
        raise UnreadableSource("XML, but not a sitemap")
    return urls, "sitemapindex" in roots
