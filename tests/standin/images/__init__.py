"""Stand-ins for what the images of this repository need and cannot be had everywhere (README.md)."""
