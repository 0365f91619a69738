"""The command agent inside every sandbox: sessions, commands, files and ports over HTTP."""
