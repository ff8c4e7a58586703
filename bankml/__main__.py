"""`python -m bankml` is the `bankml` command."""

from bankml.cli.main import console

if __name__ == "__main__":
    console()
