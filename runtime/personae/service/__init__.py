"""The process that games talk to: sessions, NPC records, prompts and the scheduler in one loop; the engine is its child."""
