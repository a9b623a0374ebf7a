"""`python -m codanet`, for launchers that want a module."""

import sys

from .cli import main

sys.exit(main())
