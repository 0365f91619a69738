"""What the harbor package imports from us, and what builds tasks for it.

``local_environment`` runs task environments as local sandboxes, ``agents`` holds agents that are installed already,
``dockerfile`` and ``images`` turn a task's Dockerfile into layers, ``job_runner`` is the process inside the outer sandbox.
"""
