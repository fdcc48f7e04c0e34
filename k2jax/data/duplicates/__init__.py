"""Duplicates among documents: proposed by MinHash, verified exactly, removed in favour of a named document.

In reading order: ``settings`` (what counts, and the bands for a threshold), ``words`` and ``shingles`` (texts as
arrays of 64-bit hashes), ``signatures`` over ``part_files`` (each part hashed, signed, sorted), ``signed_parts`` (all
parts as one sequence), ``proposals`` (copies, and pairs by band), ``verification`` (exact), ``keeping`` (who is
removed), ``attributes`` (dolma's layout), ``removal`` (the whole).
"""
