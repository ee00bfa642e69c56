"""Hooks that add the repository's files outside docs/ to the mkdocs site."""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

REPOSITORY = Path(__file__).resolve().parent.parent
OUTSIDE = "repository"
"""The folder of the site that holds linked files of the repository, such as schedules and results."""

PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Pages of the site that lie at the top of the repository."""

_LINK = re.compile(r"\]\((?P<target>[^)#\s:]+)(?P<anchor>#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages at the top of the repository, and every file outside docs/ that a page links to."""
    for source, target in PAGES.items():
        files.append(File.generated(config, target, content=(REPOSITORY / source).read_text(encoding="utf-8")))
    for page in list(files.documentation_pages()):
        for match in _LINK.finditer(page.content_string):
            target = site_link(match["target"], page.src_uri)
            path = target.partition(f"{OUTSIDE}/")[2]
            if path and files.get_file_from_path(f"{OUTSIDE}/{path}") is None and (REPOSITORY / path).is_file():
                added = File.generated(config, f"{OUTSIDE}/{path}", abs_src_path=str(REPOSITORY / path))
                files.append(added)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """A page's text with its links as they are in the site."""

    def replaced(match: re.Match[str]) -> str:
        return f"]({site_link(match['target'], page.file.src_uri)}{match['anchor'] or ''})"

    return _LINK.sub(replaced, markdown)


def site_link(target: str, page: str) -> str:
    """Where a relative link of a page leads in the site. What leads nowhere stays as it is, and mkdocs reports it."""
    folder = REPOSITORY if page in PAGES.values() else REPOSITORY / "docs" / Path(page).parent
    path = (folder / target).resolve()
    if not path.is_file() or not path.is_relative_to(REPOSITORY):
        return target
    inside = str(path.relative_to(REPOSITORY))
    up = "../" * page.count("/")
    if inside in PAGES:
        return up + PAGES[inside]
    return up + (inside.removeprefix("docs/") if inside.startswith("docs/") else f"{OUTSIDE}/{inside}")
