"""Forms that create and change things, each with the command and the entry of a setup file that do the same.

fields    what a form is
access    grants, policies, tags, comments
objects   views, quality rules, webhooks, connectors
branches  branches of the lake, which are created and merged
showing   their pages, and what asks before something is deleted
"""
