"""A tavern at night: a text game of one room, in which everybody has a voice of their own. Copy from it what you need.

Five things a game with NPCs has to do are here, each in one function:

    hire      make NPCs of characters, once
    speak     let one answer, and show the reply while it is being spoken
    address   let the player speak to all who sit at a table, who answer at once and hear each other; whoever was chatting is interrupted
    approach  have those ready whom the player is about to meet
    chatter   let NPCs talk among themselves in the background, without ever making the player wait

Everything comes from `personae_client`; the model runs in the service, in a process of its own.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import re
import sys
import threading

from personae_client import AsyncClient, AsyncNpc, PersonaeError

ENDPOINT = "tcp://127.0.0.1:7777"
TABLES = {
    "hearth": ("A fire, two chairs, and moss that nobody planted.", ("knight", "spirit")),
    "corner": ("Dark, sticky, and loud.", ("pirate", "robot")),
}
SMALL_TALK = ("A cold night, is it not?", "Have you heard the wind?", "What will you do tomorrow?", "Who is that stranger over there?")
CHATTER_EVERY_S = 12.0
CHATTER_TOKENS = 40  # small talk is short
SENTENCE_END = re.compile(r"(?<=[.!?…])\s+")

Tables = dict[str, list[AsyncNpc]]


async def hire(client: AsyncClient) -> Tables:
    """Seat everybody. An NPC lives in the service until it is sent away; it remembers what is said to it, and nothing else."""
    return {table: [await client.spawn(character, player="Stranger") for character in who] for table, (_look, who) in TABLES.items()}


async def speak(npc: AsyncNpc, text: str, *, speaker: str | None = None, table: str = "") -> str:
    """Say something to an NPC and show its answer sentence by sentence, as it comes. Returns the spoken part of it.

    `speaker`: the NPC who says it; None: the player. What NPCs tell each other is ambient: it yields to the player, and is short.
    A game would append every delta to a speech balloon instead, and give the sentences to its text-to-speech.
    """
    prefix = f"    [{table}] " if speaker else ""
    priority, max_tokens = ("ambient", CHATTER_TOKENS) if speaker else ("player", None)
    unsaid = ""
    try:
        # Sent at once. Whoever leaves the block early, by cancelling the task for instance, cancels the reply.
        async with npc.say(text, speaker=speaker, priority=priority, max_tokens=max_tokens) as stream:
            async for delta in stream:
                *sentences, unsaid = SENTENCE_END.split(unsaid + delta.text)
                for sentence in sentences:
                    print(f"{prefix}{npc.name}: {sentence}")
            done = await stream
    except PersonaeError as error:  # the engine may have been restarted, or the connection lost: the game goes on
        print(f"{prefix}{npc.name} looks away and says nothing. [{error.code}]")
        return ""
    if unsaid.strip():
        print(f"{prefix}{npc.name}: {unsaid.strip()}{' -' if done.finish == 'interrupted' else ''}")
    return done.speech


async def address(client: AsyncClient, table: list[AsyncNpc], text: str) -> None:
    """All who sit there answer together: one decode for all of them, each in the voice of its own adapter.

    What the player says interrupts whoever is in the middle of small talk. Then each of them has heard what the others answered.
    """
    answers = await asyncio.gather(*(speak(npc, text) for npc in table))
    for npc, answer in zip(table, answers, strict=True):
        listeners = [other.id for other in table if other is not npc]
        if answer and listeners:
            await client.observe(listeners, answer, speaker=npc.name)


async def approach(table: list[AsyncNpc]) -> None:
    """The player is on the way: what these NPCs have to read before their first word is read now."""
    await asyncio.gather(*(npc.warm() for npc in table), return_exceptions=True)  # one that speaks is warm already


async def chatter(tables: Tables, is_quiet_at: dict[str, bool]) -> None:
    """Now and then two NPCs at another table exchange a few words, in the background."""
    for small_talk in itertools.cycle(SMALL_TALK):
        await asyncio.sleep(CHATTER_EVERY_S)
        table = random.choice([name for name in tables if not is_quiet_at[name]])
        first, second = tables[table]
        print(f"    [{table}] {first.name}: {small_talk}")
        answer = await speak(second, small_talk, speaker=first.name, table=table)
        if answer and not is_quiet_at[table]:  # the player has not sat down there meanwhile
            await speak(first, answer, speaker=second.name, table=table)


def look(tables: Tables, here: str) -> None:
    print(f"\nYou sit down at the {here}. {TABLES[here][0]} With you: {' and '.join(npc.name for npc in tables[here])}.")
    print(f"(Say something. `go {' | '.join(name for name in tables if name != here)}` changes the table, `quit` goes home.)")


async def play(client: AsyncClient) -> None:
    tables, here, lines = await hire(client), "hearth", typed_lines()
    is_quiet_at = {name: name == here for name in tables}  # nobody chats where the player sits
    gossip = asyncio.create_task(chatter(tables, is_quiet_at))
    try:
        look(tables, here)
        while (line := await lines.get()) != "quit":
            verb, _space, place = line.partition(" ")
            if verb == "go" and place in tables:
                here = place
                is_quiet_at.update({name: name == here for name in tables})
                await approach(tables[here])
                look(tables, here)
            elif line:
                await address(client, tables[here], line)
    finally:
        gossip.cancel()
        await asyncio.gather(gossip, return_exceptions=True)
        for npc in [npc for table in tables.values() for npc in table]:
            await npc.despawn()


def typed_lines() -> asyncio.Queue[str]:
    """The player's lines, read on a thread: the loop goes on meanwhile, and the thread keeps nobody from quitting."""
    lines: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def read() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(lines.put_nowait, line.strip())
        loop.call_soon_threadsafe(lines.put_nowait, "quit")

    threading.Thread(target=read, daemon=True).start()
    return lines


async def main() -> int:
    endpoint = sys.argv[1] if len(sys.argv) > 1 else ENDPOINT
    try:
        async with AsyncClient(endpoint, name="tavern") as client:
            await play(client)
    except PersonaeError as error:  # no service, no such character: one sentence, and what to do
        print(f"The tavern is closed. {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    try:
        sys.exit(asyncio.run(main()))
    except KeyboardInterrupt:
        print("\nYou step out into the night.")
