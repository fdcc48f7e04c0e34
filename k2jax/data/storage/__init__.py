"""The life of a corpus behind its making: copied between folders and stores, retired, and shown on a page.

Reading order: ``corpus_sync`` (copies), ``retirement`` (what must not be used any more), ``registry_page`` over
``corpus_figures`` (a page of all corpora).
"""
