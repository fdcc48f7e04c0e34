"""Object storage: what URLs such as ``s3://bucket/key`` name is read and written here, through fsspec.

What is read comes by way of this machine's disk: object storage, then a bounded folder that all processes share, then
the kernel's page cache. Every request is bounded, counted and repeated where it may be.

Reading order: ``object_address`` and ``object_path`` (a place in a store, with the methods of a path that its readers
use), ``host_settings`` (what a machine allows), ``store_client`` over ``attempts`` (requests), ``disk_tier`` (chunks on
this machine's disk), ``cached_reads`` (ranges through it, with read-ahead), ``object_reader`` (an object as a file).
"""
