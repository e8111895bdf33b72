"""Buckets (s3://, gs://) with the standard library: list, get, put, and a directory in sync with a prefix.

`s3` and `gcs` are the two kinds of storage, `credentials` finds the credentials (preferably a pod's own identity),
`directory_sync` fills and sends the directories of mounts.
"""
