"""How a sandbox is made, limited and destroyed: `local` (Linux namespaces) and `docker`."""
