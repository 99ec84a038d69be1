"""What may happen in a world, in any order: a schedule is a list of steps, and a step is a word or the turns of calls.

["all goes well", "a driver ends with 75", Turns(("LOST", "nothing"), ("KILLED", "suspend")), "all goes well", ...]
"""

import asyncio
import inspect
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from rljob_operator import names
from rljob_operator.kube.kinds import POD, POD_GROUPS, WATCHED, Kind
from tests.rljob_operator.world.images import DENIED, NOWHERE, SILENT
from tests.rljob_operator.world.stories import ADMIT, STOP_ADMITTING, Act, fails, loses, no_image, server
from tests.rljob_operator.world.user import KEY
from tests.rljob_operator.world.wire import Call, Fate, Turn
from tests.rljob_operator.world.world import World

CODES = (0, 64, 70, 75, 76, 78, 79, 137)


class Turns(NamedTuple):
    """Of the next calls: fate, and what happens just before."""

    turns: tuple[tuple[str, str], ...]


Step = str | Turns


LOSSES = ("evicted", "failed", "gone")

WATCHES: dict[str, Kind] = {
    **{f"{kind}s": kind for kind in WATCHED if kind not in POD_GROUPS.values()},
    **{f"PodGroups of {scheduler}": kind for scheduler, kind in POD_GROUPS.items()},
}
"""What they tell of."""


def _unpulled_is_lost(how: str, world: World) -> None:
    world.trouble.pod_without_image_is_lost(how)


def _breaks(kind: Kind, world: World) -> None:
    world.streams.break_off(kind)


def _stalls(kind: Kind, world: World) -> None:
    world.streams.stalled.add(kind)


async def _passes(seconds: float, world: World) -> None:
    world.trouble.nobody_acts(seconds)
    await asyncio.sleep(seconds)


async def _tells(kind: Kind, events: int, world: World) -> None:
    for _ in range(events):
        if kind in world.streams.waiting():
            await world.process.hear(kind, world.streams.take(kind))


async def _repeats(kind: Kind, world: World) -> None:
    for event in world.streams.repeated(kind):
        await world.process.hear(kind, event)


def _evicted(why: str, world: World) -> None:
    world.kueue.evict(why)


async def _is_refused(world: World) -> None:
    """In the job's namespace, for that list."""
    world.server.closed.add(KEY.namespace)
    world.process.resync()
    await world.settle()
    world.server.closed.clear()


def _begins_and_is_forgotten(world: World) -> None:
    """Time in which no operator looks: drivers begin, Ray's container ends with them, and another one is ready."""
    for _ in range(2):
        for driver in world.heads.living():
            world.heads.step(driver)
    world.trouble.head_restarts()
    for pod in world.server.all(POD):
        world.nodes.step(pod)
    world.kuberay.step()


def _mends_at_once(world: World) -> None:
    """Nobody need have seen that it was suspended meanwhile."""
    world.user.mends_images()
    world.user.change(suspend=False)


def _misnames_at_once(world: World) -> None:
    world.user.names(NOWHERE, suspend=True)
    world.user.change(suspend=False)


def _reschedules_at_once(world: World) -> None:
    world.user.change(suspend=True)
    world.user.another_scheduler()
    world.user.change(suspend=False)


def _reserves_at_once(world: World) -> None:
    world.user.change(suspend=True)
    world.user.another_server()
    world.user.change(suspend=False)


OF_IMAGES: dict[str, Act] = {
    **{f"no {role} gets its image": no_image(SILENT, role) for role in names.ROLES},
    **{f"no {role} may have its image": no_image(DENIED, role) for role in names.ROLES},
    "images can be pulled": lambda world: world.images.out.clear(),
    "kubelets try again": lambda world: world.trouble.kubelets_try_again(),
    **{f"a pod without its image is {how}": partial(_unpulled_is_lost, how) for how in LOSSES},
    "another image, which is not there": lambda world: world.user.names(NOWHERE),
    "another image of servers, which is not there": lambda world: world.user.names(NOWHERE, of_servers=True),
    "another image at once, which is not there": _misnames_at_once,
    "images are mended": lambda world: world.user.mends_images(),
    "images are mended, and the job goes on": _mends_at_once,
}
"""What happens to them."""

OF_KUEUE: dict[str, Act] = {
    "Kueue acts": lambda world: world.kueue.step(),
    "Kueue admits": ADMIT,
    "Kueue admits nothing": STOP_ADMITTING,
    **{
        f"Kueue evicts: {why}": partial(_evicted, why) for why in ("Preempted", "PodsReadyTimeout", "LocalQueueStopped")
    },
    "Kueue gives the Workload up": lambda world: world.kueue.give_up(),
    "the Workload is deleted": lambda world: world.kueue.delete(),
    "the Workload is deactivated": lambda world: world.kueue.activate(active=False),
    "the Workload is activated": lambda world: world.kueue.activate(active=True),
}
"""What happens to quota."""

OF_GANGS: dict[str, Act] = {
    "PodGroups are protected": lambda world: world.gangs.step(),
    "the PodGroup is deleted": lambda world: world.gangs.delete(),
    "a person holds the PodGroup": lambda world: world.gangs.hold(),
    "a person lets the PodGroup go": lambda world: world.gangs.let_go(),
    "gang schedulers are removed": lambda world: world.gangs.uninstall(),
    "gang schedulers are installed": lambda world: world.gangs.install(),
    "another gang scheduler": lambda world: world.user.another_scheduler(),
    "another gang scheduler at once": _reschedules_at_once,
    "another server at once": _reserves_at_once,
}
"""What happens to PodGroups."""

HAPPENINGS: dict[str, Act] = {
    "nothing": lambda world: None,
    "KubeRay reconciles": lambda world: world.kuberay.step(),
    "nodes act": lambda world: [world.nodes.step(pod) for pod in world.server.all(POD)],
    "Deployments are reconciled": lambda world: world.deployments.step(),
    "garbage is collected": lambda world: world.garbage.step(),
    "drivers work": lambda world: [world.heads.step(driver) for driver in world.heads.living()],
    "the head restarts": lambda world: world.trouble.head_restarts(),
    "drivers begin and are forgotten": _begins_and_is_forgotten,
    "suspend": lambda world: world.user.change(suspend=True),
    "resume": lambda world: world.user.change(suspend=False),
    "more steps": lambda world: world.user.more_steps(),
    "other shape": lambda world: world.user.other_shape(),
    "another server": lambda world: world.user.another_server(),
    "an API of tomorrow": lambda world: world.user.of_tomorrow(),
    "the API of today": lambda world: world.user.of_tomorrow(None),
    "shorter ttl": lambda world: world.user.change(ttlAfterFinished="0s"),
    "delete": lambda world: world.user.delete(),
    "delete in the foreground": lambda world: world.user.delete("Foreground"),
    "delete by force": lambda world: world.user.delete_by_force(),
    "create": lambda world: world.user.create(),
    "the Secret is deleted": lambda world: world.trouble.secret_is_deleted(),
    "the cluster is deleted": lambda world: world.trouble.cluster_is_deleted(),
    "the cluster is deleted in the foreground": lambda world: world.trouble.cluster_is_deleted("Foreground"),
    **{f"a driver ends with {code}": fails(code) for code in CODES},
    "a driver is killed": lambda world: world.trouble.driver_ends(137, recorded=False),
    **{f"a {kind} is {how}": loses(kind, how) for kind in ("head", "worker") for how in LOSSES},
    **{f"a server is {how}": server(how) for how in LOSSES},
    **{f"the watch of {these} breaks": partial(_breaks, kind) for these, kind in WATCHES.items()},
    **{f"the watch of {these} stalls": partial(_stalls, kind) for these, kind in WATCHES.items()},
    "the operator's Role is gone": lambda world: world.server.closed.add(KEY.namespace),
    "the operator's Role is back": lambda world: world.server.closed.clear(),
    "agents are mute": lambda world: setattr(world.heads, "mute", True),
    "agents answer": lambda world: setattr(world.heads, "mute", False),
    **OF_IMAGES,
    **OF_KUEUE,
    **OF_GANGS,
    "the watches work": lambda world: world.streams.stalled.clear(),
}
"""In the middle of a call, or between two."""


STEPS: dict[str, Act] = {
    **HAPPENINGS,
    "all goes well": lambda world: world.live(),
    "the watches tell all": lambda world: world.deliver(),
    "look again": lambda world: world.process.queue.add(KEY),
    "the operator lists": lambda world: world.process.resync(),
    "the operator lists and is refused": _is_refused,
    "the operator restarts": lambda world: world.restart(),
    "what was late arrives": lambda world: world.arrive(),
    **{f"the watch of {these} tells one": partial(_tells, kind, 1) for these, kind in WATCHES.items()},
    **{f"the watch of {these} tells four": partial(_tells, kind, 4) for these, kind in WATCHES.items()},
    **{f"the watch of {these} repeats itself": partial(_repeats, kind) for these, kind in WATCHES.items()},
    **{f"{seconds} s pass": partial(_passes, seconds) for seconds in (1, 30, 130, 400)},
}


async def play(world: World, schedule: Sequence[Step], *, prompt: bool) -> None:
    """From a world that has begun. Turns that no call has met when the next ones come are forgotten.

    prompt: the watches tell of each step before the next one.
    """
    coming: list[tuple[str, str]] = []
    world.next_turn = lambda call: turn(world, call, *coming.pop(0)) if coming else Turn()
    for step in schedule:
        if isinstance(step, Turns):
            coming[:] = step.turns
        else:
            done = STEPS[step](world)
            if inspect.isawaitable(done):
                await done
            await world.settle()
            if prompt:
                await world.deliver()


def turn(world: World, call: Call, fate: str, happening: str) -> Turn:
    if fate == "LATE" and not call.kube:
        fate = "UNSENT"  # a call of a head ends with its caller's connection
    return Turn(Fate[fate], partial(HAPPENINGS[happening], world))


Disturbance = tuple[int, str, str]
"""After how many calls, what fate meets the next one, and what happens just before."""


def disturb(world: World, disturbances: Sequence[Disturbance]) -> None:
    """One after the other."""
    left = list(disturbances)
    calls = 0

    def next_turn(call: Call) -> Turn:
        nonlocal calls
        if not left or calls < left[0][0]:
            calls += 1
            return Turn()
        calls = 0
        return turn(world, call, *left.pop(0)[1:])

    world.next_turn = next_turn
