"""Questions over a generated world of documents, with search tools."""
