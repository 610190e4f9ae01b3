"""One process of Skiway: from settings to open doors, and back to closed stores.

`skiway.runtime.process` is the whole of it; the other modules are its parts, one noun each.
"""

import skiway.extras.lake  # noqa: F401 - names the extra to install
