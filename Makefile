# Every target first sees to it that .venv holds what is pinned (tools/bootstrap.sh).
# ARGS passes options on, for example: make run ARGS="--help"
python := .venv/bin/python

.PHONY: help run test lab data bench xla test-xla clean distclean bootstrap

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' Makefile

run: bootstrap  ## measure the ladder on this machine and write the report
	sh data/prepare.sh digits
	$(python) -m helpers run $(ARGS)

test: bootstrap  ## run all tests, the notebooks too
	$(python) -m pytest $(ARGS) tests
	$(python) -m pytest $(ARGS) --nbval notebooks

lab: bootstrap  ## open the notebooks in JupyterLab, on this machine only
	cd notebooks && ../$(python) -m jupyterlab --ip=127.0.0.1 $(ARGS)

data: bootstrap  ## prepare data sets: make data ARGS="--help"
	sh data/prepare.sh $(ARGS)

bench: bootstrap  ## run the benchmarks
	$(python) -m benchmarks $(ARGS)

xla: bootstrap  ## make .venv-xla, the environment of the XLA cells (7 GB of disk)
	@sh tools/bootstrap.sh xla

test-xla: xla  ## run the tests of training through XLA
	$(python) -m pytest $(ARGS) -m xla tests

clean:  ## remove results, build products and caches
	rm -rf results .cache build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . \( -path ./.venv -o -path ./.venv-xla \) -prune -o -type d \( -name __pycache__ -o -name .ipynb_checkpoints \) -exec rm -rf {} +

distclean: clean  ## the same, and remove .venv, .venv-xla and the prepared data sets
	rm -rf .venv .venv-xla
	find data -mindepth 1 -maxdepth 1 ! -name prepare.sh ! -name .gitignore -exec rm -rf {} +

bootstrap:
	@sh tools/bootstrap.sh
