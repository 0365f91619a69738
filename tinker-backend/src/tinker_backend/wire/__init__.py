"""Protobuf and JSON forms of the Tinker protocol. The only place that knows how bytes look on the wire."""
