"""`python -m keras_turbo`."""

from __future__ import annotations

import sys

from keras_turbo.cli import main

if __name__ == "__main__":
    sys.exit(main())
