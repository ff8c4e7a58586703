"""The minute's form of testing/soak.py: under load and abuse every answer is the solo one, and nothing is kept."""

from testing import soak


def test_a_minute_of_load_and_abuse(capsys):
    code = soak.main(["--minutes", "1", "--requests", "100000", "--seed", "2"])
    assert code == 0, capsys.readouterr().out
