# make setup   everything this project needs, in .venv
# make train   trains LunarLander until solved or 10 minutes (TASK=breakout: or 30), then plays
#              the best checkpoint and makes a video of how it learned
# make test    lint, types, tests
# make slow    the tests that train for minutes; make bench: the speed comparisons
# make study-cartpole, study-lunarlander, study-waiting: ways of sharing compared; WITHIN=90 minutes at most,
#              again: goes on. The report: runs/study-…/report.html

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
TASK   ?= lunarlander
MINUTES ?= $(if $(filter breakout pong,$(TASK)),30,10)
ifndef RUN
RUN    := runs/$(TASK)-$(shell date +%Y%m%d-%H%M%S)
endif
PEERS  := .venv-peers
WITHIN ?= 90

.PHONY: setup train test slow bench bench-rollouts bench-sharing \
  study-cartpole study-lunarlander study-waiting clean

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

test: setup
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy
	$(BIN)/pytest

slow: setup
	$(BIN)/pytest -m slow

# Peers pin other versions, so they live in an environment of their own.
$(PEERS)/.ready: benchmarks/peers.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check -r benchmarks/peers.txt
	@touch $@

bench: setup $(PEERS)/.ready
	$(BIN)/python benchmarks/speed.py --peer-python $(PEERS)/bin/python

bench-rollouts: setup $(PEERS)/.ready
	$(BIN)/python benchmarks/speed_rollouts.py --peer-python $(PEERS)/bin/python

bench-sharing: setup
	$(BIN)/python benchmarks/sharing.py

study-cartpole study-lunarlander study-waiting: study-%: setup
	$(BIN)/manyhands compare --config benchmarks/studies/$*.toml --out runs/study-$* \
	  --within-minutes $(WITHIN)

clean:
	rm -rf $(VENV) $(PEERS)
