"""Whom a client trusts and how it proves who it is: settings, stores and names. Bytes and files, no sockets."""
