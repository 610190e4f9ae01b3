"""Logs, metrics, traces and the audit trail of one process, and the call they speak of.

Import the module you need (`skiway.telemetry.context`, `.logs`, `.metrics`, `.traces`, `.audit`): this package imports
none of them, so that the context alone costs nothing.
"""
