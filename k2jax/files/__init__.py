"""Files and data of others, read within bounds: paths that stay in a folder, and JSON of a limited number of values.

Reading order: ``confined`` (paths), ``bounded_json`` (values).
"""
