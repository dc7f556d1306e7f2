"""`personae talk`: a conversation with one or several NPCs, in a running service or in one of our own. Decides what a typed line does.

Lines come from a terminal or from a pipe. What goes wrong in a turn is one sentence, and the conversation goes on; what goes wrong with
our own service ends it.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.cells import cell_len
from rich.console import Console

from personae.cli.cast import find_cast, meant
from personae.cli.interruption import Interruption
from personae.cli.private_service import PrivateService
from personae.cli.talk_display import Display
from personae.cli.talk_room import Room, in_words
from personae.cli.terminal import client_failures, forgiving_streams, is_interactive, printable, watched
from personae.cli.voices import Voice
from personae.errors import AskedWrong
from personae_client import Client
from personae_client import PersonaeError as ClientError

CONNECT_S = 10.0  # a service that is still loading its model keeps us waiting
PROMPT = "You: "
HELP = """\
Whatever you type is said to everybody here; they hear you, but not each other.
pirate: hello     says it to one alone; so does @pirate hello
Ctrl-C            interrupts whoever is speaking
/who              who is here, and who could be
/add robot        another NPC joins
/leave pirate     one leaves
/history pirate   what one remembers; without a name, what all do
/mood drunk       whoever has that mood answers in it; without a name, as always
/stats            what the last replies took
/quit             ends, as Ctrl-D does"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("character", nargs="*", metavar="CHARACTER", help="whom to talk to (default: the first there is)")
    parser.add_argument("--connect", metavar="ENDPOINT", help="a running service: tcp://127.0.0.1:7777, or its port alone")
    parser.add_argument("--token", help="what that service wants to be told")
    parser.add_argument("--model", help="for a service of our own: smollm2, the path of a GGUF file, or fake (default: smollm2)")
    parser.add_argument(
        "--characters", type=Path, metavar="DIR", help="for a service of our own: folder of packs (default: ./characters, else the samples)"
    )
    parser.add_argument("--threads", type=int, metavar="N", help="for a service of our own (default: as `personae serve`)")
    parser.add_argument("--name", help="what they call you (default: Player)")


def run(args: argparse.Namespace) -> int:
    display = Display(Console(highlight=False), is_live=is_interactive())
    with forgiving_streams(), client_failures(), _service(args, display) as (service, endpoint), watched(service):
        client = Client(endpoint, token=args.token, name="personae talk", timeout=CONNECT_S)
        with contextlib.closing(client):
            Conversation(Room(client, args.name), display, service).run(args.character)
    return 0


@contextlib.contextmanager
def _service(args: argparse.Namespace, display: Display) -> Iterator[tuple[PrivateService | None, str]]:
    """A service, and where it is: our own (ended when we leave), or None and that of somebody else."""
    if args.connect is not None:
        _check_connect(args)
        yield None, endpoint_of(args.connect)
        return
    if args.token is not None:
        raise AskedWrong("bad_arguments", "--token is for a running service.", "Say which with --connect.")
    arguments = ["--model", args.model or "smollm2", "--characters", str(find_cast(args.characters))]
    arguments += [] if args.threads is None else ["--threads", str(args.threads)]
    with PrivateService(arguments) as service:
        with display.console.status("Starting a service and loading the model...") if display.is_live else contextlib.nullcontext():
            service.wait_until_ready()
        yield service, service.endpoint


def _check_connect(args: argparse.Namespace) -> None:
    for option in ("model", "characters", "threads"):
        if getattr(args, option) is not None:
            raise AskedWrong("bad_arguments", f"A running service has its own {option}.", f"Leave out --{option}, or --connect.")


def endpoint_of(given: str) -> str:
    """A port, or host and port, or a whole endpoint."""
    if given.isdecimal():
        return f"tcp://127.0.0.1:{given}"
    return given if "://" in given else f"tcp://{given}"


class Conversation:
    def __init__(self, room: Room, display: Display, service: PrivateService | None) -> None:
        """`service`: our own, whose death ends the conversation; None for somebody else's."""
        self._room, self._display, self._service = room, display, service
        self._is_over = False
        self._commands: dict[str, Callable[[str], None]] = {
            "who": self._who,
            "add": self._add,
            "leave": self._leave,
            "history": self._history,
            "mood": self._mood,
            "stats": self._stats,
            "help": self._help,
            "quit": self._quit,
        }

    def run(self, characters: Sequence[str]) -> None:
        """Until the lines end or somebody quits. AskedWrong when nobody can be talked to."""
        try:
            self._begin(characters)
            for line in self._lines():
                self._take(line.strip())
                if self._is_over:
                    break
        finally:
            if self._service is None:  # our own takes all NPCs along
                self._room.close()

    def _begin(self, characters: Sequence[str]) -> None:
        for problem in self._room.cast.problems:
            print(f"personae: pack {problem.pack}: {in_words(problem)}", file=sys.stderr)
        known = self._room.character_ids
        if not known and not characters:
            raise AskedWrong("bad_arguments", "There is no usable character pack.", "Give the service a folder of packs: --characters.")
        for voice in [self._room.add(character) for character in characters or known[:1]]:
            self._greet(voice)
        if self._display.is_live:
            others = [character for character in known if character not in (voice.npc.card.character for voice in self._room.voices)]
            also = f"/add brings {' or '.join(others)}; " if others else ""
            self._display.notice(f"{also}/help tells what else you can do; Ctrl-D ends")

    def _greet(self, voice: Voice) -> None:
        names = self._room.names()
        self._display.names_width = max(map(cell_len, names.values()))
        self._display.said(names[voice.npc.id], voice.colour, printable(voice.npc.greeting) or "is here")

    # --- lines --------------------------------------------------------------------------------------------------------

    def _lines(self) -> Iterator[str]:
        return self._typed_lines() if self._display.is_live else iter(sys.stdin)

    def _typed_lines(self) -> Iterator[str]:
        """At the prompt one Ctrl-C drops the line; two in a row end, as Ctrl-D does."""
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  gives input() a history and editing keys
        was_interrupted = False
        while True:
            try:
                yield input(PROMPT)
                was_interrupted = False
            except EOFError:
                print()
                return
            except KeyboardInterrupt:
                print()
                if was_interrupted:
                    return
                was_interrupted = True
                self._display.notice("Ctrl-C again, Ctrl-D or /quit ends")

    def _take(self, line: str) -> None:
        """Do what a line says. What it gets wrong costs a sentence."""
        if not line:
            return
        self._check_service()
        self._tell_news()
        try:
            if line.startswith("/"):
                self._obey(line)
            else:
                self._say(line)
        except AskedWrong as mistake:
            self._display.complaint(str(mistake))
        except ClientError as error:
            self._check_service()
            self._display.complaint(str(error))

    def _obey(self, line: str) -> None:
        name, _space, rest = line[1:].partition(" ")
        command = self._commands.get(name.lower())
        if command is None:
            raise AskedWrong("bad_arguments", f"There is no command /{name}.", meant(name, self._commands))
        command(rest.strip())

    def _say(self, line: str) -> None:
        voices, text = self._room.addressed(line)
        if not voices:
            raise AskedWrong("bad_arguments", "Nobody is here.", f"/add somebody. {meant('', self._room.character_ids)}")
        if not text:
            raise AskedWrong("bad_arguments", "There is nothing to say in that line.", "Write it behind the name.")
        for voice in voices:
            voice.ask(text)
        with Interruption() as interruption:

            def each_frame() -> None:
                self._check_service()
                if interruption.is_asked:
                    _barge_in(voices)

            self._display.replies(voices, self._room.names(), each_frame)

    def _check_service(self) -> None:
        """Raise what our own died of; somebody else's may come back."""
        if self._service is not None:
            self._service.check()

    def _tell_news(self) -> None:
        for news in self._room.news():
            self._display.notice(printable(news))

    # --- commands -----------------------------------------------------------------------------------------------------

    def _who(self, _rest: str) -> None:
        for voice in self._room.voices:
            self._display.said(voice.npc.id, voice.colour, f"{printable(voice.npc.name)}, {voice.npc.card.character}")
        self._display.notice(f"You could /add: {', '.join(self._room.character_ids) or 'nobody'}")

    def _add(self, character: str) -> None:
        if not character:
            raise AskedWrong("bad_arguments", "/add takes a character.", meant("", self._room.character_ids))
        self._greet(self._room.add(character))

    def _leave(self, name: str) -> None:
        voice = self._room.leave(name)
        self._display.notice(f"{printable(voice.npc.name)} has left")

    def _history(self, name: str) -> None:
        for voice in [self._room[name]] if name else self._room.voices:
            self._display.notice(f"What {voice.npc.id} remembers:")
            for line in voice.npc.history():
                self._display.said(printable(line.speaker), voice.colour if line.is_npc else "", printable(line.text))

    def _mood(self, name: str) -> None:
        for voice in self._room.set_mood(name or None):
            self._display.notice(f"{printable(voice.npc.name)} is {printable(name) if name else 'as always'}")
        if not name:
            known = [f"{npc}: {', '.join(moods)}" for npc, moods in self._room.moods().items()]
            self._display.notice(f"Moods of {printable('; '.join(known))}" if known else "Nobody here has moods")

    def _stats(self, _rest: str) -> None:
        welcome, totals = self._room.client.welcome, self._room.client.stats()["totals"]
        mode = f"{welcome.mode} ({welcome.mode_reason})" if welcome.mode_reason else welcome.mode
        for voice in self._room.voices:
            if voice.done is not None:
                self._display.said(voice.npc.id, voice.colour, _took(voice))
        self._display.notice(f"{welcome.model.name}, {mode}: {totals['tokens']} tokens spoken in {totals['decodes']} decodes")

    def _help(self, _rest: str) -> None:
        self._display.notice(HELP)

    def _quit(self, _rest: str) -> None:
        self._is_over = True


def _barge_in(voices: Sequence[Voice]) -> None:
    for voice in voices:
        if voice.stream is not None and not voice.stream.is_over:
            voice.stream.cancel()


def _took(voice: Voice) -> str:
    assert voice.done is not None
    usage, timing = voice.done.usage, voice.done.timing
    first = f"first word after {timing.ttft_ms:.0f} ms, " if timing.ttft_ms >= 0 else ""
    return f"{first}{usage.reply} tokens in {timing.total_ms / 1e3:.1f} s; prompt {usage.reused} reused, {usage.prefilled} read"
