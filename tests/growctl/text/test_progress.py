"""The progress bar of slow commands."""

from growctl.text.progress import progress_bar


def test_the_bar_shows_what_is_done_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress_bar("reading") as advance:
        advance(1, 4, "softmax")
        advance(3, 4)
    err = capsys.readouterr().err
    assert "softmax" in err
    assert "75%" in err


def test_nothing_is_shown_off_a_terminal(monkeypatch, capsys):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    with progress_bar("reading") as advance:
        advance(0.5)
    assert capsys.readouterr() == ("", "")
