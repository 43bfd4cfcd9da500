"""Configuration of the site: pages of this folder, the documents of the project, and the docstrings.

Build it with `sphinx-build -W --keep-going -n -c docs/site . build/site`. The source folder is the root of the
project, so a link in a document has the same target on the site and in the repository. See CONTRIBUTING.md.
"""

import ast
import inspect
import re
import sys
from html import escape
from importlib import import_module
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx

import mha_native

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))

from draw_speed import draw_speed  # noqa: E402

project = "mha_native"
author = "the authors of mha_native"
copyright = "the authors of mha_native"
release = version = mha_native.__version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx_copybutton",
    "sphinx_design",
]

# Pages. Documents in these folders are found automatically; `guides.md` sets their order.
root_doc = "docs/site/index"
include_patterns = ["docs/*.md", "docs/**/*.md", "bench/*.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"]
exclude_patterns = [".*", "build", "_skbuild", "dist"]
# Pages that replace link targets which are not pages themselves.
PAGES = {
    "README.md": "docs/site/start",
    "docs/decisions": "docs/site/decisions",
    "examples": "docs/site/tasks/index",
    "examples/README.md": "docs/site/tasks/index",
    "examples/cpp": "docs/site/tasks/cpp",
}

myst_enable_extensions = ["attrs_inline", "colon_fence"]
myst_heading_anchors = 4
suppress_warnings = [
    "misc.highlighting_failure",  # an excerpt of a file need not be valid code
    "myst.header",  # included parts of documents keep their heading levels
]
highlight_language = "text"

# Words in single backticks of docstrings become links if they are public names, otherwise code.
default_role = "py:obj"
nitpicky = True
nitpick_ignore_regex = [("py:obj", ".*")]
autodoc_typehints = "none"  # docstrings have shapes, types do not
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
numpydoc_show_class_members = False
numpydoc_xref_param_type = False
add_module_names = False
python_use_unqualified_type_names = True

html_theme = "pydata_sphinx_theme"
html_title = "mha_native"
html_favicon = "favicon.svg"
html_extra_path = ["root"]  # pages at the root of the site: index.html, which leads to root_doc, and 404.html
html_show_sourcelink = False
html_copy_source = False
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_sidebars = {page: [] for page in ("docs/site/start", "docs/site/gallery", "docs/site/speed")}
toc_object_entries_show_parents = "hide"
html_theme_options = {
    "show_prev_next": False,
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "header_links_before_dropdown": 6,
}
copybutton_exclude = ".linenos, .gp, .go"


def lead_links_to_pages(app: Sphinx, doctree: nodes.document) -> None:
    """Redirect relative links to folders and source files to the pages that show them."""
    folder = Path(app.env.doc2path(app.env.docname)).parent
    for node in list(doctree.findall(pending_xref)):
        if node.get("reftype") != "myst":
            continue
        if node.get("refdomain") == "doc":
            place = ROOT / f"{node['reftarget']}.md"
        else:
            place = (folder / node["reftarget"]).resolve()
            path, _, anchor = node["reftarget"].partition("#")
            if path.endswith(".md") and not (folder / path).exists() and (ROOT / path).exists():  # included from README
                node["refdomain"], node["reftarget"], node["reftargetid"] = "doc", path.removesuffix(".md"), anchor
                continue
        page = PAGES.get(place.relative_to(ROOT).as_posix()) if place.is_relative_to(ROOT) else None
        if page is not None:
            node["refdomain"], node["reftarget"], node["reftargetid"] = "doc", page, None


def add_modules(app: Sphinx, docname: str, source: list[str]) -> None:
    """Add every module of `interop` to its page, and `Transformer` to the page of `sentence_transformers`."""
    package = Path(mha_native.__file__).parent
    if docname == "docs/site/api/interop":
        folder = package / "interop"
        paths = [*folder.glob("[a-z]*.py"), *(path.parent for path in folder.glob("*/__init__.py"))]
        entries = [entry("module", f"mha_native.interop.{path.stem}", path) for path in sorted(paths)]
    elif docname == "docs/site/api/sentence_transformers":
        path = package / "sentence_transformers" / "_transformer_module.py"
        entries = [entry("class", "mha_native.sentence_transformers.Transformer", path)]
    else:
        return
    source[0] += "\n```{eval-rst}\n" + "\n".join(entries) + "\n```\n"


def add_summary(app: Sphinx, docname: str, source: list[str]) -> None:
    """Add a table of all entries, with their first lines, above the first entry of a page of the API."""
    if not docname.startswith("docs/site/api/"):
        return
    names: list[str] = []
    for kind, name in re.findall(r"^\.\. auto(function|class|module):: (\S+)", source[0], re.M):
        module = import_module(name if kind == "module" else name.rpartition(".")[0])
        public = getattr(module, "__all__", ()) if kind == "module" else [name.rpartition(".")[2]]
        names += [f"{module.__name__}.{one}" for one in public if not one.startswith("__") and hasattr(module, one)]
    if names:
        table = ".. list-table::\n   :widths: 40 60\n\n" + "".join(map(summary_row, dict.fromkeys(names)))
        source[0] = source[0].replace("```{eval-rst}", f"```{{eval-rst}}\n{table}```\n\n```{{eval-rst}}", 1)


def summary_row(name: str) -> str:
    """Return the row of a name: a link to its entry, and the first paragraph of its docstring, or nothing."""
    module, _, attribute = name.rpartition(".")
    text = inspect.getdoc(getattr(import_module(module), attribute)) or ""
    first = " ".join(text.partition("\n\n")[0].split())
    return f"   * - :py:obj:`{name.removeprefix('mha_native.')} <{name}>`\n     - {first}\n"


def add_outputs(app: Sphinx, docname: str, source: list[str]) -> None:
    """Add the recorded output below each example of the pages of tasks."""

    def with_output(match: re.Match[str]) -> str:
        output = HERE / "outputs" / f"{match[1]}.txt"
        if not output.is_file():
            return match[0]
        return f"{match[0]}\nIt prints:\n\n```{{literalinclude}} ../outputs/{output.name}\n:language: text\n```\n"

    if docname.startswith("docs/site/tasks/"):
        source[0] = re.sub(r"```\{literalinclude\} \S*/([\w.]+)\n.*?\n```\n", with_output, source[0], flags=re.S)


def add_description(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Add the description of a page for search engines: its first paragraph, up to 160 characters."""
    first = next(doctree.findall(nodes.paragraph), None) if doctree is not None else None
    text = " ".join(first.astext().split()) if first is not None else f"{project}: {context.get('title', '')}"
    if len(text) > 160:
        text = text[:157].rpartition(" ")[0] + " ..."
    context["metatags"] = f'{context.get("metatags", "")}\n<meta name="description" content="{escape(text)}">'


def entry(kind: str, name: str, path: Path) -> str:
    """Return the entry of a module or class: whole, or without its package, public names with their first lines."""
    module = name if kind == "module" else name.rpartition(".")[0]
    try:
        imported = import_module(module)
        if kind == "class":
            getattr(imported, name.rpartition(".")[2])
    except ImportError:
        files = sorted(path.glob("*.py")) if path.is_dir() else [path]
        body = [node for file in files for node in ast.parse(file.read_text(encoding="utf-8")).body]
        lists = [node for node in body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"]
        names = {name for node in lists for name in ast.literal_eval(node.value)}
        lines = [f".. py:{'module' if kind == 'module' else 'currentmodule'}:: {module}", ""]
        for node in body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name in names:
                role = "class" if isinstance(node, ast.ClassDef) else "function"
                first = (ast.get_docstring(node) or "").partition("\n")[0]
                lines += [f".. py:{role}:: {node.name}", "", f"   {first}", ""]
        return "\n".join(lines)
    return f".. auto{kind}:: {name}\n"


def setup(app: Sphinx) -> None:
    app.connect("source-read", add_modules)
    app.connect("source-read", add_summary)
    app.connect("source-read", add_outputs)
    app.connect("html-page-context", add_description)
    app.connect("doctree-read", lead_links_to_pages)
    draw_speed(ROOT / "bench" / "RESULTS.md", ROOT / "build" / "pictures")
