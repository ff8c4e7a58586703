"""Which models a name from the network may mean: those in the model folders, and the one the server was started with.

A name is compared with the names that are there; no path is ever made of it.
"""

from pathlib import Path

from bankml import models
from bankml.serve.errors import ApiError


class Names:
    """given: the model of the command line. resident: the path of the model that is loaded, or was loaded last."""

    def __init__(self, given: Path):
        self.given = self.resident = Path(given)

    def paths(self) -> list[Path]:
        """All models that may be asked for, the resident one first."""
        found = [self.resident, self.given, *models.at_hand()]
        return list({path.stem: path for path in reversed(found)}.values())[::-1]

    def find(self, name: str) -> Path:
        """The model that is meant, with or without `.gguf`. Raises ApiError 404."""
        for path in self.paths():
            if name in (path.stem, path.name):
                return path
        at_hand = ", ".join(path.stem for path in self.paths())
        raise ApiError(404, f"model '{name}' not found; at hand: {at_hand}", kind="model_not_found")
