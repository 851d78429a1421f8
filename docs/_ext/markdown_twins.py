"""Writes each page also as Markdown, and ``llms.txt``: the list of pages, for readers that are programs.

The pages are written in Markdown, so a twin is its source, with what only Sphinx understands put into words.
Its links lead to other twins, as they stand. A page ``quickstart.html`` has the twin ``quickstart.md``;
``llms-full.txt`` has all of them. (sphinx-llm 1.1 and sphinx-markdown-builder 0.6 write them from Sphinx's
trees, and leave out admonitions: the warnings.)
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

#: A directive of MyST: its fence, name, argument and body.
DIRECTIVE = re.compile(
    r"^(?P<fence>```+)\{(?P<name>[\w-]+)\} *(?P<argument>.*)\n(?P<body>(?:.*\n)*?)(?P=fence)$", re.MULTILINE
)
OPTION = re.compile(r"^:(?P<name>[\w-]+): *(?P<value>.*)\n", re.MULTILINE)
LINK = re.compile(r"\[([^]]+)\]\([^)]*\)")
CODE = re.compile(r"^```(?:.*\n)*?```$", re.MULTILINE)
#: Links and paragraphs that pages write as HTML, since Sphinx knows neither their class nor live.html.
ANCHOR = re.compile(r'<a [^>]*?href="([^"]+)">(.*?)</a>')
PARAGRAPH = re.compile(r"</?p\b[^>]*>")
COMMENT = re.compile(r" *<!--.*?-->", re.DOTALL)
ADMONITIONS = {"note": "Note", "tip": "Tip", "warning": "Warning", "important": "Important"}


class Twins:
    """The pages of a documentation as Markdown."""

    def __init__(self, folder: Path, titles: dict[str, str]) -> None:
        """``titles``: of each page, by its name below ``folder``."""
        self._folder = folder
        self._titles = titles

    def twin(self, page: str) -> str:
        """Return the Markdown of a page."""
        return self._plain((self._folder / f"{page}.md").read_text(), page)

    def index(self) -> str:
        """Return ``llms.txt``: the first paragraph of the first page, and the pages in their order."""
        lines = [f"# {self._titles['index']}", "", f"> {self.summary('index')}"]
        for caption, pages in self.tables("index"):
            lines += ["", f"## {caption}", ""]
            lines += [
                f"- [{self._titles[page]}]({page}.md): {self.summary(page)}"
                for page in self._with_parts(pages)
            ]
        return "\n".join([*lines, ""])

    def order(self) -> list[str]:
        """Return all pages in the order in which they are read."""
        listed = [page for _, pages in self.tables("index") for page in pages]
        return list(dict.fromkeys(["index", *listed, *sorted(self._titles)]))

    def tables(self, page: str) -> Iterator[tuple[str, list[str]]]:
        """Yield the caption and the pages of each table of contents of a page."""
        for found in DIRECTIVE.finditer((self._folder / f"{page}.md").read_text()):
            if found["name"] == "toctree":
                yield (
                    dict(OPTION.findall(found["body"])).get("caption", ""),
                    self._entries(found["body"], page),
                )

    def _with_parts(self, pages: list[str]) -> Iterator[str]:
        """The pages, and after each those that it lists; of decisions, only their list."""
        for page in pages:
            yield page
            if page != "adr/index":
                for _, parts in self.tables(page):
                    yield from parts

    def summary(self, page: str) -> str:
        """Return the first sentence of a page."""
        text = CODE.sub("", self.twin(page))
        for part in text.split("\n\n")[1:]:
            if re.match(r"[\w*`\[@]", part):
                words = LINK.sub(r"\1", " ".join(part.split())).replace("**", "")
                return re.split(r"(?<=[.?!])(?: |$)", words)[0]
        return self._titles[page]

    def _entries(self, body: str, page: str) -> list[str]:
        folder = posixpath.dirname(page)
        names = (posixpath.join(folder, line.strip()) for line in OPTION.sub("", body).splitlines())
        return [name for name in names if name in self._titles]

    def _plain(self, text: str, page: str) -> str:
        text = DIRECTIVE.sub(lambda found: self._words(found, page), text)
        text = PARAGRAPH.sub("", ANCHOR.sub(r"[\2](\1)", COMMENT.sub("", text)))
        return text.strip() + "\n"

    def _words(self, found: re.Match[str], page: str) -> str:
        """What stands in the place of a directive."""
        name, argument, body = found["name"], found["argument"], found["body"]
        options, text = dict(OPTION.findall(body)), OPTION.sub("", body).strip()
        beside = (self._folder / f"{page}.md").parent
        if name == "include":
            whole = (beside / argument).read_text()
            return self._plain(whole.replace(f"]({options.get('relative-docs', '')}", "]("), page)
        if name == "literalinclude":
            return f"```{options.get('language', '')}\n{(beside / argument).read_text().strip()}\n```"
        if name == "toctree":
            folder = posixpath.dirname(page) or "."
            pages = [
                f"- [{self._titles[entry]}]({posixpath.relpath(entry, folder)}.md)"
                for entry in self._entries(body, page)
            ]
            return "\n".join([f"**{options['caption']}**\n", *pages] if "caption" in options else pages)
        if name in ("image", "figure"):
            dark = "only-dark" in options.get("class", "")
            return "" if dark else f"![{options.get('alt', '')}]({argument})"
        if name == "admonition" or name in ADMONITIONS:
            title = argument if name == "admonition" else ADMONITIONS[name]
            return "\n".join(f"> {line}".rstrip() for line in [f"**{title}**", "", *text.splitlines()])
        if name == "raw":
            return ""
        raise ValueError(f"{page}: directive {name} is unknown. Say here what it is in plain Markdown")


def write(app: Any, error: Exception | None) -> None:
    """Write all twins beside the pages."""
    if error is not None or app.builder.name != "html":
        return
    titles = {page: title.astext() for page, title in app.env.titles.items()}
    twins, to = Twins(Path(app.srcdir), titles), Path(app.outdir)
    for page in titles:
        (to / f"{page}.md").write_text(twins.twin(page))
    (to / "llms.txt").write_text(twins.index())
    (to / "llms-full.txt").write_text("\n\n".join(twins.twin(page) for page in twins.order()))


def setup(app: Any) -> dict[str, bool]:
    """Of Sphinx."""
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
