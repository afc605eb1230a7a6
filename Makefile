# Every target first sees to it that .venv holds what is pinned (tools/bootstrap.sh).
# ARGS passes options on, for example: make run ARGS="--help"
python := .venv/bin/python

unexport PYTHONDONTWRITEBYTECODE  # else each of a hundred processes compiles the kit anew

.PHONY: help run test test-long test-torch test-newest test-all wheels soak lab data bench xla test-xla keras test-keras mxnet test-mxnet caffe test-caffe messages zh site slides preflight cheatsheet clean distclean bootstrap

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-11s %s\n", $$1, $$2}' Makefile

run: bootstrap  ## measure the ladder on this machine and write the report
	sh data/prepare.sh digits
	$(python) -m helpers run $(ARGS)

test: bootstrap  ## run the tests of every room and every notebook once (20 minutes on two slow cores)
	$(python) -m pytest -n 4 --dist loadfile --no-loadscope-reorder -m "not long" $(ARGS) --nbval notebooks tests

test-long: bootstrap  ## run the long tests: sweeps, repeats, soak, browser, two hosts, notebooks/more
	$(python) -m pytest -n 4 --dist loadfile --no-loadscope-reorder -m long $(ARGS) --nbval notebooks/more tests

test-torch:  ## run the quick tests on another release of torch: make test-torch TORCH=2.6 (6 GB of disk)
	@sh tools/bootstrap.sh torch $(TORCH)
	.venv-torch-$(TORCH)/bin/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder -m "not long" $(ARGS) tests

NEWEST = --nbval notebooks/00_start_here.ipynb tests/launcher tests/persistent tests/training
test-newest:  ## run the tests of launcher, persistent ranks and training and notebook 00 with the newest version of every dependency
	@sh tools/bootstrap.sh newest
	.venv-newest/bin/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder -m "not long" $(ARGS) $(NEWEST)

test-all: test test-long  ## run all of them (35 minutes on two idle cores)

soak: bootstrap  ## launch 300 times in two kernels, a third of it with planted failures (10 minutes at most)
	$(python) -m tools.soak $(ARGS)

lab: bootstrap  ## open your copy of the notebooks, workshop/, in JupyterLab, on this machine only
	$(python) -m tools.workshop
	JUPYTER_CONFIG_PATH="$(CURDIR)/tools/jupyter" $(python) -m jupyterlab --LabApp.default_url=/lab/tree/workshop/00_start_here.ipynb $(ARGS)

data: bootstrap  ## prepare data sets: make data ARGS="--help"
	sh data/prepare.sh $(ARGS)

bench: bootstrap  ## run the benchmarks: make bench ARGS="growth --keep"
	$(python) -m benchmarks $(ARGS)

xla: bootstrap  ## make .venv-xla, the environment of the XLA cells (7 GB of disk)
	@sh tools/bootstrap.sh xla

test-xla: xla  ## run the tests of training through XLA
	$(python) -m pytest $(ARGS) -m xla tests

keras: bootstrap  ## make .venv-keras, the environment of platforms.horovod.keras and .tensorflow (7 GB of disk)
	@sh tools/bootstrap.sh keras

test-keras: keras  ## run the tests of training with Keras and TensorFlow
	$(python) -m pytest $(ARGS) -m keras tests

mxnet:  ## make .venv-mxnet, the environment of platforms.horovod.mxnet (2 GB of disk, Python 3.8)
	@sh tools/bootstrap.sh mxnet

test-mxnet: bootstrap mxnet  ## run the tests of training with MXNet
	$(python) -m pytest $(ARGS) -m mxnet tests

caffe: bootstrap  ## build Caffe into .venv-caffe, from the source and with the libraries of Debian (6 minutes)
	@sh tools/caffe.sh

test-caffe: caffe  ## run the tests of training with Caffe
	$(python) -m pytest $(ARGS) -m caffe tests

messages: bootstrap  ## bring locale/zh_CN up to date with the English text: make messages ARGS=03_ddp
	$(python) -m tools.translate messages $(ARGS)

zh: bootstrap  ## write the Chinese README and notebooks/zh from locale/zh_CN
	$(python) -m tools.translate write $(ARGS)

site:  ## build the static site of README, docs and notebooks into build/site; no cell is run
	@sh tools/bootstrap.sh site
	.venv-site/bin/python -m tools.site $(ARGS)

slides: bootstrap  ## make slides of the notebooks, one file each that needs no network, into build/slides: make slides ARGS=03_ddp
	$(python) -m tools.slides $(ARGS)

preflight: bootstrap  ## say in a minute what this machine can and cannot do in a workshop, and write it for the teacher
	$(python) -m tools.preflight $(ARGS)

cheatsheet: bootstrap  ## print the cheat sheet of docs/teaching as PDF and HTML, in both languages, into build/cheatsheet
	$(python) -m tools.cheatsheet $(ARGS)

wheels: bootstrap  ## fetch all packages into wheels/, for PIP_NO_INDEX=1 PIP_FIND_LINKS=wheels make run without a network
	if [ -s .venv/constraints.txt ] && [ ! -e .venv/lender ]; then \
		$(python) -m pip list --format=freeze --exclude-editable --exclude=pip; \
	else cat requirements.txt; fi >.venv/wheels.txt  # where the driver wants an older torch, the pins do not hold
	$(python) -m pip download --dest wheels -r .venv/wheels.txt "$$(sed -n 's/^uv_version=/uv==/p' tools/bootstrap.sh)"

clean:  ## remove results, build products and caches
	rm -rf results .cache build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -path './.venv*' -prune -o -type d \( -name __pycache__ -o -name .ipynb_checkpoints \) -exec rm -rf {} +

distclean: clean  ## the same, and remove .venv, the other environments and the prepared data sets
	rm -rf .venv .venv-*
	find data -mindepth 1 -maxdepth 1 ! -name prepare.sh ! -name .gitignore -exec rm -rf {} +

bootstrap:
	@sh tools/bootstrap.sh
