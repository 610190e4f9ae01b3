"""The wiring of a Skiway process: it builds all parts from the settings, starts them, and stops them in reverse order.

`skiway.runtime.process` starts a server and `skiway.runtime.workers` a worker. `skiway.runtime.parts` has what all processes of a
server share, and `skiway.runtime.grpc.services` what they serve; the other modules build single parts.
"""

from skiway.foundation import extras

extras.check("lake")


__all__: list[str] = []
