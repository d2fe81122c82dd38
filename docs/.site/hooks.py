"""What `make docs` does to pages and docstrings on their way to the site.

Parameters in docstrings are lines `name: what it is`; Markdown would run them together, so they become a
list. Names of code on the page about the paper get the line that they are at today.
"""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

from griffe import Extension

NAME = re.compile(r"`((?:securefed|research)(?:\.\w+)+)`")
PARAMETER = re.compile(r"^(\w+(?:, \w+)*): ", re.MULTILINE)


def listed(text: str) -> str:
    """A docstring whose parameters are a Markdown list."""
    before, found, after = text.partition("Parameters\n----------\n")
    if not found:
        return text
    return before + "\n**Parameters**\n\n" + PARAMETER.sub(r"- `\1`: ", after)


class Parameters(Extension):
    """For mkdocstrings."""

    def on_object(self, *, obj: Any, **kwargs: Any) -> None:
        if getattr(obj, "docstring", None):
            obj.docstring.value = listed(obj.docstring.value)


def located(name: str) -> str:
    """`a.b.C.method` with its file and line."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        file = found.__file__
        if cut == len(parts):
            return f"`{name}`"
        for part in parts[cut:]:
            found = inspect.getattr_static(found, part)
        found = getattr(found, "fget", found)
        line = inspect.getsourcelines(getattr(found, "__func__", found))[1]
        return f"`{name}` ({file.rsplit('/', 1)[1]}:{line})"
    raise LookupError(f"no module of {name}")


def on_page_markdown(markdown: str, page: Any, **kwargs: Any) -> str:
    if page.file.src_uri != "paper.md":
        return markdown
    return NAME.sub(lambda found: located(found[1]), markdown)
