"""Checks the pages of the site: python tests/architecture/check_site.py build/site

Every link within the site leads to a file and to an anchor that exist; no script, style, font or picture is of another
server; every page has a description and an icon, and each page of the API a summary table; the root has a first page,
and one for addresses that do not exist; and every public name of the package has an entry.
"""

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

PACKAGE = Path(__file__).resolve().parents[2] / "python" / "mha_native"
SHOWN_ELSEWHERE = {"sharded_cache.py"}  # in `distributed`
# What a page loads by itself, by element; `a` is followed by readers only.
LOADS = {"link": "href"} | dict.fromkeys(("audio", "embed", "iframe", "img", "script", "source"), "src")


class Page(HTMLParser):
    """What a page has: its anchors, what it links to, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.description = ""
        self.has_icon = self.has_table = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attrs if value}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag == "meta" and values.get("name") == "description":
            self.description = values.get("content", "")
        self.has_table |= tag == "table"
        self.has_icon |= tag == "link" and "icon" in values.get("rel", "").split()
        if values.get(LOADS.get(tag, "")):
            self.loaded.append(values[LOADS[tag]])


def pages_of(site: Path) -> dict[Path, Page]:
    """The pages, by their absolute path; what the theme brings along in _static is none."""
    paths = (path for path in sorted(site.resolve().rglob("*.html")) if "_static" not in path.parts)
    return {path: Page(path.read_text(encoding="utf-8")) for path in paths}


def broken_links(pages: Mapping[Path, Page]) -> Iterator[str]:
    for path, page in pages.items():
        for link in page.links + page.loaded:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_file():
                yield f"{path} leads to {link}, which does not exist"
            elif target in pages and unquote(parts.fragment) not in {"", *pages[target].anchors}:
                yield f"{path} leads to {link}, where there is no such anchor"


def foreign_resources(pages: Mapping[Path, Page]) -> Iterator[str]:
    for path, page in pages.items():
        yield from (f"{path} loads {link} of another server" for link in page.loaded if urlsplit(link).netloc)


def missing_parts(site: Path, pages: Mapping[Path, Page]) -> Iterator[str]:
    """What a search engine, a browser or a reader misses: descriptions, icons, tables, index.html, 404.html."""
    yield from (f"{path} has no description" for path, page in pages.items() if not page.description)
    yield from (f"{path} has no icon" for path, page in pages.items() if not page.has_icon and path.name != "404.html")
    api = {path for path in pages if path.parent.name == "api" and path.name != "index.html"}
    yield from (f"{path} has no summary table" for path in sorted(api) if not pages[path].has_table)
    yield from (f"{site} has no {name}" for name in ("index.html", "404.html") if not (site / name).is_file())


def public_names() -> list[str]:
    """In full, what is in `__all__` of the package, its folders, and the modules of two folders that users import."""
    files = [PACKAGE / "__init__.py", *PACKAGE.glob("*/__init__.py")]
    files += [path for folder in ("distributed", "interop") for path in (PACKAGE / folder).glob("[a-z]*.py")]
    files += (PACKAGE / "interop").glob("*/__init__.py")
    return sorted({name for path in files if path.name not in SHOWN_ELSEWHERE for name in _names(path)})


def _names(path: Path) -> Iterator[str]:
    """The names in `__all__` of a file, which is read and not imported: it may stand on what is not installed."""
    module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            yield from (f"{module}.{name}" for name in ast.literal_eval(node.value) if not name.startswith("__"))


def missing_names(pages: Mapping[Path, Page], names: Iterable[str]) -> Iterator[str]:
    """Names that no page has an entry for: its anchor is the name in full, that of a module has `module-` before."""
    anchors = {anchor.removeprefix("module-") for page in pages.values() for anchor in page.anchors}
    yield from (f"{name} has no entry" for name in names if name not in anchors)


def main(site: Path) -> int:
    pages = pages_of(site)
    faults = [*broken_links(pages), *foreign_resources(pages), *missing_parts(site, pages)]
    faults += missing_names(pages, public_names())
    print("\n".join(faults) or f"{len(pages)} pages, whose links lead somewhere; every public name has an entry")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
