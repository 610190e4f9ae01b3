"""Stores of secrets, such as the credentials of connectors, which are never part of the records that use them.

`store.open_secrets` opens a store by URL: in memory, in encrypted files, or in AWS Secrets Manager.
"""
