# make setup        installs everything into .venv
# make train        trains LunarLander until solved or for 10 minutes (TASK=breakout: 30), plays the
#                   best checkpoint, and makes a video of how it learned
# make quick        lint, types, and the tests that start no process and train nothing: two minutes
# make test         lint, types, all tests
# make coverage     all tests; prints the lines that no test reaches in its own process
# make heavy        all tests; writes tests/heavy.txt, the tests that make quick leaves out
# make freeze       adds this kind of machine to tests/contracts/frozen_weights.json
# make slow         the tests that train for minutes
# make docs         builds the site into site/, strictly and without a network
# make results      writes docs/results.md and the README's tables from benchmarks/results/
# make bench        speed against Stable-Baselines3; also bench-rollouts, bench-busy, bench-sharing
# make bench-guard  two minutes; fails if an update became 15 % slower against plain products
# make bench-start-up  seconds until --help, the first update and 32 workers
# make bench-peers  the same jobs by us and by other libraries; continues where it was stopped
# make bench-peers-score  seconds until LunarLander 200 and Breakout 30, the same way
# make soak-kills   random signals to the processes of every recipe, MINUTES=30
# make soak-faults  81 kinds of misbehaving environments
# make study-NAME   a study of benchmarks/studies/, cell by cell, for at most WITHIN=90 minutes; the
#                   same command continues. Report: runs/study-NAME/report.html
#   waiting         LunarLander with a step of 5 ms, solved by 1 to 32 workers
#   lunarlander     ten seeds: serial, with two threads, two workers of every strategy
#   replay, replay-waiting     local against global replay, and how often workers copy
#   staleness       gradients 0 to 256 updates late, by four optimizers
#   breakout        a million frames of Breakout by Nature's DQN, serial and with actors apart
#   snake           Downpour with RMSprop and AdaGrad against serial, 1 to 8 workers
#   adagrad         which rate AdaGrad needs; lag: the age of gradients and of actors' weights
#   cartpole        every parallel recipe; dyna: with a learned model

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
TASK   ?= lunarlander
MINUTES ?= $(if $(filter breakout pong,$(TASK)),30,10)
ifndef RUN
RUN    := runs/$(TASK)-$(shell date +%Y%m%d-%H%M%S)
endif
PEERS  := .venv-peers
LIBRARIES := sb3 jax sbx tianshou torchrl sample-factory rllib
WITHIN ?= 90
STUDIES := $(patsubst benchmarks/studies/%.toml,study-%,$(wildcard benchmarks/studies/*.toml))

.PHONY: setup train lint quick test coverage heavy freeze docs slow bench bench-rollouts bench-busy \
  bench-sharing bench-guard bench-start-up peers bench-peers bench-peers-score \
  results soak-kills soak-faults \
  $(STUDIES) clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "manyhands needs Python 3.11 or newer: make PYTHON=python3.12 …"; exit 2; }
	@echo "installing into $(VENV): some minutes, once"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[all]"
	@touch $@

train: setup
	$(BIN)/manyhands train $(TASK) --until-solved --minutes $(MINUTES) --out $(RUN)
	$(BIN)/manyhands evaluate $(RUN) $$(test -d $(RUN)/best && echo --best)
	@$(BIN)/manyhands record $(RUN) --through-time \
	  || echo "no video, for the reason above; the run is complete: $(RUN)"

lint: setup
	$(BIN)/ruff check src tests benchmarks examples docs
	$(BIN)/ruff format --check src tests benchmarks examples docs
	$(BIN)/mypy
	$(BIN)/mypy --config-file tests/mypy.ini

quick: lint
	$(BIN)/pytest -m "not slow and not heavy"

# Two halves side by side: a test mostly waits, or computes on one core. The slowest are listed.
test: lint
	@$(BIN)/pytest --durations=15 --half 2 > .pytest-half-2.log 2>&1 & second=$$!; \
	$(BIN)/pytest --durations=15 --half 1; first=$$?; wait $$second || first=1; cat .pytest-half-2.log; exit $$first

coverage: setup
	$(BIN)/pytest --cov=manyhands --cov-report=term:skip-covered

heavy: setup
	$(BIN)/pytest --note-heavy

freeze: setup
	$(BIN)/python tests/contracts/test_frozen_weights.py

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

slow: setup
	$(BIN)/pytest -m slow

# Other libraries pin other versions, so they have their own environment.
$(PEERS)/.ready: benchmarks/peers.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check -r benchmarks/peers.txt
	@touch $@

bench: setup $(PEERS)/.ready
	$(BIN)/python benchmarks/speed.py --peer-python $(PEERS)/bin/python

bench-rollouts: setup $(PEERS)/.ready
	$(BIN)/python benchmarks/speed_rollouts.py --peer-python $(PEERS)/bin/python

bench-busy: setup
	$(BIN)/python benchmarks/busy.py

# One environment for each library. One that cannot be installed does not stop the others.
$(PEERS)-%/.ready: benchmarks/peers/%.txt
	$(PYTHON) -m venv $(PEERS)-$*
	$(PEERS)-$*/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

peers: setup
	@for name in $(LIBRARIES); do $(MAKE) $(PEERS)-$$name/.ready \
	  || { rm -rf $(PEERS)-$$name; echo "$$name cannot be installed: left out"; }; done

bench-peers: peers
	$(BIN)/python benchmarks/bench_peers.py $(MORE)

bench-peers-score: peers
	$(BIN)/python benchmarks/bench_peers_score.py $(MORE)

bench-guard: setup
	$(BIN)/python benchmarks/guard.py $(KEEP)

bench-start-up: setup
	$(BIN)/python benchmarks/start_up.py

bench-sharing: setup
	$(BIN)/python benchmarks/sharing.py

results: setup
	$(BIN)/python benchmarks/results_page.py

soak-kills: MINUTES = 30
soak-kills: setup
	$(BIN)/python benchmarks/soak_kills.py --minutes $(MINUTES)

soak-faults: setup
	$(BIN)/python benchmarks/soak_faults.py

$(STUDIES): study-%: setup
	$(BIN)/manyhands compare --config benchmarks/studies/$*.toml --out runs/study-$* \
	  --within-minutes $(WITHIN)

clean:
	rm -rf $(VENV) $(PEERS) $(PEERS)-*
