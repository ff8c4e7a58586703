"""The live view of a running engine: `render` makes a picture of a snapshot, `Live` keeps one on the terminal."""

from bankml.dashboard.live import Live
from bankml.dashboard.view import render

__all__ = ["Live", "render"]
