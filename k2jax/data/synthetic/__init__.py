"""Corpora of any size that take no room: for tests of order and scale, and for ``python -m k2jax.bench loader``.

Read in this order: ``virtual_files`` (files whose bytes are computed when they are read), ``linear_sums`` (their
checksums, without reading them), ``folders`` (folders of shards with real manifests over such files).
"""
