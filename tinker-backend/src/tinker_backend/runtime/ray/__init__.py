"""The cluster runtime: Ray actors that train with FSDP2 and sample with vLLM, behind the roles of ``runtime.roles``."""
