"""What one request may cost: stated once, for the page and for the tools of assistants."""

from __future__ import annotations

from dataclasses import dataclass

from costmodel.base.errors import CostModelError


class LimitError(CostModelError):
    """A request that would cost more than is allowed; the message says how to ask for less."""


class StoppedError(CostModelError):
    """A request that the person who made it has stopped."""


@dataclass(frozen=True)
class Limits:
    """Ceilings of a request, and of what runs at once.

    Attributes
    ----------
    answer_s, plan_s : float
        Time after which a priced job, and a plan or a report page, is ended. [s]
    plan_layouts : int
        Layouts that a plan may price. [-]
    answers_at_once, plans_at_once : int
        Processes for each; further answers wait, further plans are refused. [-]
    upload_bytes : int
        Longest file that is taken. [B]
    link_characters : int
        Longest address that is read. [-]
    text_characters : int
        Longest text of one field. [-]
    memory_bytes : int
        Memory of a process, where the system can hold it to that. [B]
    """

    answer_s: float = 20.0
    plan_s: float = 120.0
    plan_layouts: int = 20_000_000
    answers_at_once: int = 2
    plans_at_once: int = 2
    upload_bytes: int = 1_000_000
    link_characters: int = 16_000
    text_characters: int = 2_000
    memory_bytes: int = 6 * 2**30


LIMITS = Limits()
"""Those that hold unless somebody who starts the program in Python says otherwise."""
