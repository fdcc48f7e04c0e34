"""The only way of a sandbox to other machines: a proxy of this program that reaches listed hosts, and a log of it.

Modules: ``allow_list`` (what the user allows, what a task asks for), ``resolver`` (each name once, public addresses
alone), ``request`` (what a client asks a proxy, read strictly), ``exchange`` (a request and its answer), ``tunnel``
(what is encrypted), ``proxy`` (the server and its limits), ``egress_log``.
"""
