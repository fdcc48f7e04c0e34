"""What HTTP servers share: bodies and streams within limits, API keys, sockets and a graceful end. Needs starlette.

In reading order: ``server`` (a server's life), ``http`` (bodies and responses), ``protocol`` and ``arrivals`` (bounds
before the framework sees a byte), ``models`` (the list of models).
"""
