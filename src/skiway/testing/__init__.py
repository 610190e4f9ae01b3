"""What tests of Airport servers need: a pytest plugin, and recorded traffic of the real DuckDB client.

The plugin is `skiway.testing.plugin`; pytest finds it if Skiway is installed. It has the fixtures `airport_server`,
`airport_client`, `airport_serve`, `airport_connect` and `airport_recordings`. This package imports nothing but the standard
library, because pytest loads it in every run.
"""

from skiway.testing.recordings import Call, Conversation, RecordedFilter, Recordings, recordings

__all__ = ["Call", "Conversation", "RecordedFilter", "Recordings", "recordings"]
