"""TLS: settings, certificate and key stores, cipher suite names. Files and bytes, no sockets."""
