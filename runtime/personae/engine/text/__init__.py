"""From token bytes to text that may be shown. `ReplyText` is the only thing others need; each rule of it has a file of its own."""

from personae.engine.text.reply import Pushed, ReplyText

__all__ = ["Pushed", "ReplyText"]
