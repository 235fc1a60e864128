"""The client of OCI registries (distribution-spec v1.1): exact bytes, bounded answers, no byte twice."""
