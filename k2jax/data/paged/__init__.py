"""Files of a corpus that no memory holds: read by pages at random places, few of them open at a time.

``open_files`` says which files a process has open; ``array`` is an index that is read by pages, each compared with its
checksum.
"""
