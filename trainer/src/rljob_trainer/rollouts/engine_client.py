"""The rollout engines of a job, replaced one by one, and the spare that stands by for the next one that is lost."""

import structlog

from rljob_trainer.engines.engine import EngineSettings
from rljob_trainer.engines.engine_host import EngineHost, EngineProcess
from rljob_trainer.rank.client import RankClient
from rljob_trainer.rank.parallel import engine_count, ranks_of_engine
from rljob_trainer.workers.context import START_SECONDS, SYNC_SECONDS, WorkerContext, rollout_seconds
from rljob_trainer.workers.placement import options
from rljob_trainer.workers.waiting import has_raised, wait_for, wait_for_all, wait_for_engines
from rljob_trainer.workers.worker import Answer, Worker, arriving

log = structlog.get_logger()


class EngineClient:
    """All rollout engines, each with a place: a number, and with it GPUs. `ready` waits for those that start.

    Engines start beside the ranks and beside each other, but for those that measure the memory of their GPU: these
    start one after the other, once the ranks have loaded. So does one that failed beside them, for want of memory
    perhaps, in a process of its own.

    spare: a process that has imported what an engine needs, for the place of the next one that is lost on its node.
    """

    def __init__(self, context: WorkerContext, settings: EngineSettings, ranks: RankClient) -> None:
        self._context, self._settings, self._ranks = context, settings, ranks
        count = engine_count(context.spec)
        self._names = [f"engine-{number}" for number in range(count + 1)]
        self._ranks_of = [ranks_of_engine(context.spec, place) for place in range(count)]
        self._nodes = [context.placement.of_rank(ranks[0]) for ranks in self._ranks_of]
        self._places = [context.signature(settings, place, self._nodes[place]) for place in range(count)]
        self._spare_place = context.signature(settings, "spare", self._nodes[0])
        accepted = (*self._places, self._spare_place)
        adopted = context.roster.adopt(dict.fromkeys(self._names, accepted), wanted=self._places)
        living = {worker.signature: worker for worker in adopted.values()}
        self._spare = living.get(self._spare_place)
        if self._spare is not None:
            context.heartbeats.watch(self._spare, vital=False)
        self.workers = [living.get(signature) or self._fill(place) for place, signature in enumerate(self._places)]
        self._adopted = set(adopted)
        self._running: set[str] = set()
        self._started: dict[str, Answer[bool]] = {}
        self.replaced = 0

    @property
    def running(self) -> bool:
        return len(self._running) == len(self.workers)

    def start(self, *, beside: bool = False) -> None:
        """Let those that do not run yet build their engines (seconds to minutes), without waiting for them.

        beside: while the ranks take memory; engines that have to measure it are left to `ready`.
        """
        begun = self._running | self._started.keys()
        missing = [index for index, worker in enumerate(self.workers) if worker.name not in begun]
        if not missing:
            return
        if not beside:
            self._ranks.give_back_memory()
        gpus = self._ranks.visible_gpus()
        for index in missing:
            share = [gpu for rank in self._ranks_of[index] if (gpu := gpus[rank])]
            worker, before = self.workers[index], self._before(index) if share and not beside else None
            self._started[worker.name] = worker.call(
                EngineProcess.start, share, index, beside, *map(arriving, [before] if before else ())
            )

    def _before(self, index: int) -> Answer[bool] | None:
        """The start of the engine that starts before this one on the same GPU."""
        beside = [i for i in range(index) if self._ranks_of[i] == self._ranks_of[index]]
        starting = [self._started[name] for i in beside if (name := self.workers[i].name) in self._started]
        return starting[-1] if starting else None

    def ready(self) -> None:
        """Wait until all engines run. One that cannot start is ended: its process could not try again."""
        self._wait(beside=True)
        self.start()
        self._wait(beside=False)

    def _wait(self, *, beside: bool) -> None:
        """For those that were asked to start. One that started beside the ranks may have to be asked again."""
        while self._started:
            name, started = next(iter(self._started.items()))
            try:
                runs = wait_for(started, START_SECONDS, f"{name} to start", self._context.heartbeats.check)
            except Exception as error:
                raised = has_raised(started)
                if raised and beside:
                    log.warning("engine_starts_again", name=name, reason=str(error))
                    self.replace(name)
                    continue
                if raised:
                    self._context.roster.end(next(worker for worker in self.workers if worker.name == name))
                self._started.clear()  # those behind it on its GPU were not called: ask all again
                raise
            del self._started[name]
            if runs:
                settings = self._settings
                log.info(
                    "engine_started", name=name, engine=settings.kind, device=settings.device, dtype=settings.dtype
                )
                self._running.add(name)

    def settle(self) -> None:
        """Wait until engines that were taken over have finished what they generate, and sleep.

        Raises EngineLost for one that cannot: it failed before, and the driver that would have replaced it has died.
        """
        seconds = rollout_seconds(self._context.spec)
        for worker in [worker for worker in self.workers if worker.name in self._adopted]:
            resting = worker.call(EngineProcess.rest)
            if wait_for_engines([resting], seconds, "finish", self._context.heartbeats.check)[0]:
                self._running.add(worker.name)
            self._adopted.discard(worker.name)

    def place(self, name: str) -> str:
        """What that engine is for: its number, whatever its name."""
        return next(str(index) for index, worker in enumerate(self.workers) if worker.name == name)

    def replace(self, name: str) -> None:
        """End that engine, and let the spare or another process take its place."""
        index = next(i for i, worker in enumerate(self.workers) if worker.name == name)
        self._context.roster.end(self.workers[index])
        self._running.discard(name)
        self._adopted.discard(name)
        self._started.pop(name, None)
        self.workers[index] = self._fill(index)
        self.replaced += 1

    def _fill(self, place: int) -> Worker[EngineProcess]:
        elsewhere = self._nodes[place] != self._nodes[0]  # than the spare
        if self._spare is None or elsewhere or self._spare_died():
            return self._host(self._places[place], self._nodes[place])
        worker, self._spare = self._spare, None
        self._context.heartbeats.watch(worker)
        worker.sign(self._places[place])
        return worker

    def keep_spare(self) -> bool:
        """Start a spare if there is none, without waiting for it. Returns False if it has died."""
        if self._spare is not None:
            return not self._spare_died()
        self._spare = self._host(self._spare_place, self._nodes[0])
        self._context.heartbeats.watch(self._spare, vital=False)
        return True

    def _spare_died(self) -> bool:
        """Forget a spare that did."""
        if self._spare is None or not self._context.heartbeats.died(self._spare.name):
            return False
        log.warning("spare_lost", name=self._spare.name)
        self._context.roster.end(self._spare)
        self._spare = None
        return True

    def _host(self, signature: str, node: str) -> Worker[EngineProcess]:
        roster = self._context.roster
        name = next(name for name in self._names if name not in roster)
        how = {"num_gpus": 0, **options(node)}
        threads = max(1, self._context.threads // self._settings.engines_per_gpu)
        return roster.start(name, signature, EngineHost, how, name, self._settings, threads, self._context.compiled)

    def sleep(self) -> None:
        """Have all engines give their GPU memory back. Raises what the first that failed raised."""
        answers = [worker.call(EngineProcess.sleep) for worker in self.workers]
        wait_for_all(answers, SYNC_SECONDS, "the rollout engines to sleep", self._context.heartbeats.check)
