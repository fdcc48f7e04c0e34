"""Evaluation items in training documents: found by runs of words that they share, weighted by how rare those are.

In reading order: ``evaluation_items`` (questions and answers of files and datasets), ``gram_index`` (their runs of
words, a sample of them sorted), ``matching`` (items in documents), ``marking`` (attributes of all files), ``scanning``
(the command).
"""
