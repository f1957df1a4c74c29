"""`python -m penstock.cli.child PARENT VERB …`: a verb that stops when the process that started it has ended.

Linux sends it SIGTERM then, also if the parent was killed. Elsewhere the child of a killed parent continues.
"""

from __future__ import annotations

import sys

from penstock.cli import main
from penstock.server.parent import stop_with

if __name__ == "__main__":
    stop_with(int(sys.argv.pop(1)))
    main()
