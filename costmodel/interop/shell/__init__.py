"""Launch scripts read as text: what a shell would expand, without running anything."""
