"""What commands that compile share: programs kept on disk."""

from typing import Annotated

import typer

CacheOption = Annotated[
    str | None,
    typer.Option(
        envvar="PAGED_COMPILATION_CACHE",
        help="Keep compiled programs in this folder or at this URL (gs://, with gcsfs); 'auto' is "
        "~/.cache/paged/xla.",
    ),
]


def keep_programs(folder: str | None) -> None:
    """Do so where a folder is named."""
    if folder:
        from paged.engine.compilation_cache import use_compilation_cache

        use_compilation_cache(folder)
