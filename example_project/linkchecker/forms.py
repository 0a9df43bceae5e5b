from typing import Any

from django import forms

from .sources import MAX_BYTES, MAX_LINKS, Source, UnreadableSource, read_source
from .targets import MAX_URL_LENGTH


class BatchForm(forms.Form):
    """A list or sitemap as text or file, or the address of a sitemap: exactly one of the three."""

    text = forms.CharField(
        label="Paste links or a sitemap",
        required=False,
        max_length=MAX_BYTES,
        widget=forms.Textarea(attrs={"rows": 7, "spellcheck": "false", "placeholder": "https://example.com/"}),
        help_text="One link a line, or the XML of a sitemap.",
    )
    file = forms.FileField(
        label="or upload a file",
        required=False,
        allow_empty_file=True,
        help_text=f"Text or sitemap XML, up to 1 MiB and {MAX_LINKS} links.",
    )
    sitemap = forms.CharField(
        label="or give the address of a sitemap",
        required=False,
        max_length=MAX_URL_LENGTH,
        widget=forms.URLInput(attrs={"placeholder": "https://example.com/sitemap.xml", "autocomplete": "off"}),
        help_text="A job fetches it and stores its links.",
    )

    source: Source | None = None

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        if self.errors:
            return data
        given = [name for name in ("text", "file", "sitemap") if data.get(name)]
        if len(given) != 1:
            raise forms.ValidationError("Give links in exactly one of the three ways.")
        try:
            if data["file"]:
                # One byte too many is enough for read_source to refuse it.
                self.source = read_source(data["file"].read(MAX_BYTES + 1))
            elif data["text"]:
                self.source = read_source(data["text"].encode("utf-8", "surrogatepass"))
        except UnreadableSource as error:
            self.add_error(given[0], f"This cannot be read: {error}.")
        else:
            if self.source and self.source.is_index:
                self.add_error(given[0], "This is an index of sitemaps. Give its address instead, then all are read.")
        return data

    @property
    def title(self) -> str:
        """A name for the batch, from how it was given."""
        file = self.cleaned_data["file"]
        return str(file.name)[:200] if file else "Pasted links"


class LinkForm(forms.Form):
    # Not a URLField: a malformed link is worth a result that says what is wrong with it.
    url = forms.CharField(
        label="Check one link",
        max_length=MAX_URL_LENGTH,
        widget=forms.URLInput(attrs={"placeholder": "https://example.com/", "autocomplete": "off"}),
    )
