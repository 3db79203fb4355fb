"""A real browser, without a window."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def require_browser() -> str:
    """The path of a browser, or a skip where there is none."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"no browser is installed ({', '.join(NAMES)})")
    return found


def run_browser(page: Path, *options: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Opens a page, with a profile of its own, and with no network to reach."""
    command = [
        require_browser(),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        "--enable-logging=stderr",
        "--v=0",
        "--proxy-server=127.0.0.1:9",
        f"--user-data-dir={folder / 'profile'}",
        *options,
        page.as_uri(),
    ]
    home = {"HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "XDG_CACHE_HOME": str(folder)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env={**os.environ, **home})
    assert done.returncode == 0, done.stderr[-2000:]
    return done
