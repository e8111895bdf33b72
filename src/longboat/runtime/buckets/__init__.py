"""Buckets (s3://, gs://) with the standard library: list, get, put, and a directory kept in step with a prefix.

`s3` and `gcs` speak to the two kinds of store, `keys` finds the right to do so without a key in a
file where there is one (a pod's own identity), `copying` is what a rank's agent calls.
"""
