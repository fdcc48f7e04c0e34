"""Corpora in object stores, and the life of a corpus: listed, copied, retired, shown.

Reading order: ``source_objects`` (objects that a source reads), ``stored_shards`` (shards that are read where they lie),
``published`` (a cache in a store), ``corpus_sync`` (copies), ``retired`` (what must not be used any more) and
``registry_page`` over ``corpus_figures`` (a page of all corpora).
"""
