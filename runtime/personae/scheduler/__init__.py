"""Who speaks, where and when: `Scheduler.handle(event) -> [action]`, without I/O, clock or chance."""

from personae.scheduler.core import Scheduler
from personae.scheduler.settings import SchedulerConfig

__all__ = ["Scheduler", "SchedulerConfig"]
