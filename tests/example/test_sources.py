import pytest
from linkchecker.sources import MAX_BYTES, MAX_DEPTH, MAX_LINKS, UnreadableSource, read_source

SITEMAP = """<?xml version="1.0" encoding="UTF-8"?>
<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9"
        xmlns:image="http://www.google.com/schemas/sitemap-image/1.1">
  <url><loc> https://example.com/a?x=1&amp;y=2 </loc><lastmod>2026-01-01</lastmod></url>
  <url><loc><![CDATA[https://example.com/b]]></loc>
    <image:image><image:loc>https://example.com/picture.png</image:loc></image:image></url>
  <url><loc/></url>
</urlset>"""

BILLION_LAUGHS = """<?xml version="1.0"?>
<!DOCTYPE urlset [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;">]>
<urlset><url><loc>&b;</loc></url></urlset>"""


def test_list_gives_one_link_a_line() -> None:
    source = read_source("\ufeff# comment\n\n https://a.example/ \r\nnot a link\nhttps://b.example/\n".encode())
    assert source.urls == ("https://a.example/", "not a link", "https://b.example/")
    assert source.note == ""


def test_sitemap_gives_its_pages_only() -> None:
    source = read_source(SITEMAP.encode())
    assert source.urls == ("https://example.com/a?x=1&y=2", "https://example.com/b")
    assert not source.is_index


@pytest.mark.parametrize("encoding", ["utf-16", "latin-1"])
def test_sitemap_may_have_another_encoding(encoding: str) -> None:
    text = SITEMAP.replace("UTF-8", encoding).replace("/b", "/ü")
    assert read_source(text.encode(encoding)).urls[1] == "https://example.com/ü"


def test_index_of_sitemaps_is_told_apart() -> None:
    source = read_source(b"<sitemapindex><sitemap><loc>https://example.com/1.xml</loc></sitemap></sitemapindex>")
    assert source.is_index
    assert source.urls == ("https://example.com/1.xml",)


def test_what_is_left_out_is_said() -> None:
    lines = [f"https://example.com/{i}" for i in range(MAX_LINKS + 3)]
    source = read_source("\n".join([lines[0], *lines, "https://example.com/" + "a" * 2000]).encode())
    assert len(source.urls) == MAX_LINKS
    assert source.note == "Left out: 1 repeated, 1 longer than 2000 characters, 3 beyond the limit of 2000."


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (b" \n\t ", "empty"),
        (b"# only a comment", "no links"),
        (b"<urlset></urlset>", "no links"),
        (b"\xff\xfe\x00\x01", "XML|UTF-8"),
        (b"caf\xe9", "not UTF-8"),
        (b"https://a.example/\x00", "not a text file"),
        (b"\x1f\x8b\x08\x00", "compressed"),
        (b"<html><body>hello</body></html>", "not a sitemap"),
        (b"<urlset><url>", "not well-formed"),
        (b'<?xml version="1.0" encoding="klingon"?><urlset/>', "not well-formed|unknown encoding"),
        (BILLION_LAUGHS.encode(), "document type"),
        (b'<!DOCTYPE x SYSTEM "file:///etc/passwd"><urlset/>', "document type"),
        (b'<!DOCTYPE x [<!ENTITY % e SYSTEM "http://a.example/">%e;]><urlset/>', "document type"),
        (b"<a>" * (MAX_DEPTH + 1), "nested"),
        (b"a" * (MAX_BYTES + 1), "larger"),
    ],
)
def test_unreadable_source_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(UnreadableSource, match=reason):
        read_source(data)
