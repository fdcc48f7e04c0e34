"""Files of a corpus that no memory holds: read by pages at random places, few of them open at a time.

Read in this order: ``open_files`` (which files a process has open), ``array`` (an index that is read by pages, each
compared with its checksum), ``index_files`` (the indices of a split).
"""
