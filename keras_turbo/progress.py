"""A progress bar for work that takes long, shown in a terminal only."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def progress_bar(description: str, total: int) -> Iterator[Callable[[int], None]]:
    """Shows how far some work is, and goes away when it ends.

    Args:
        description: what is being done.
        total: number of steps.

    Yields:
        A function that takes the number of steps done since the last call. Where standard error is no terminal, it
        does nothing.
    """
    if not sys.stderr.isatty():
        yield lambda steps: None
        return
    import rich.console
    import rich.progress

    console = rich.console.Console(stderr=True)
    columns = (*rich.progress.Progress.get_default_columns(), rich.progress.MofNCompleteColumn())
    with rich.progress.Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(description, total=total)
        yield lambda steps: progress.advance(task, steps)
