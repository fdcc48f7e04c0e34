"""What HTTP servers share: bodies and streams within limits, API keys, sockets and a graceful end. Needs starlette."""
