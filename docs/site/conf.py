"""Configuration of the site: pages of this folder, the documents of the project, and the docstrings.

Build it with `sphinx-build -W --keep-going -n -c docs/site . build/site`. The source folder is the root of the
project, so a link in a document has the same target on the site and in the repository. See CONTRIBUTING.md.
"""

import ast
import sys
from importlib import import_module
from pathlib import Path

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
    app.connect("doctree-read", lead_links_to_pages)
    draw_speed(ROOT / "bench" / "RESULTS.md", ROOT / "build" / "pictures")
