"""The evaluators of the package libwebarena, imported without what only its agents need."""

import contextlib
import os
import sys
import types
import warnings

SITES = ("REDDIT", "SHOPPING", "SHOPPING_ADMIN", "GITLAB", "WIKIPEDIA", "MAP", "HOMEPAGE")
URLS = {site.lower(): f"http://{site.lower().replace('_', '-')}.test" for site in SITES}


def load_evaluators():
    """Return the module `webarena.evaluation_harness.evaluators`.

    It wants the addresses of the sites at import. Its language models, and the libraries of four providers, are left
    out. NLTK's word tokenizer is kept, without the splitter into sentences, whose data is a download.
    """
    name = "webarena.evaluation_harness.evaluators"
    if name not in sys.modules:
        stubs = {}
        for stub in ("webarena.llms", "webarena.llms.providers", "webarena.llms.providers.openai_utils"):
            stubs[stub] = types.ModuleType(stub)
            stubs[stub].__path__ = []
        stubs["webarena.llms.providers.openai_utils"].generate_from_openai_chat_completion = None
        with _environment(URLS), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sys.modules.update(stubs)
            __import__(name)
    evaluators = sys.modules[name]
    import nltk

    evaluators.word_tokenize = lambda text: nltk.word_tokenize(text, preserve_line=True)
    evaluators.time = types.SimpleNamespace(sleep=lambda seconds: None)  # it waits 3 s for every page
    return evaluators


@contextlib.contextmanager
def _environment(urls):
    before = {site: os.environ.get(site) for site in SITES}
    os.environ.update({site.upper(): url for site, url in urls.items()})
    try:
        yield
    finally:
        for site, value in before.items():
            if value is None:
                del os.environ[site]
            else:
                os.environ[site] = value
