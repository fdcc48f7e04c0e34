"""What ends the processes that prepare data when the one that they work for has died."""

from __future__ import annotations

import os
import threading
import time

_WATCHED = 1.0  # how often a worker looks whether its parent lives [s]


def end_with(parent: int) -> None:
    """Ends this process when its parent has died, however it did; a killed process takes none of its own with it."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_WATCHED)
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()
