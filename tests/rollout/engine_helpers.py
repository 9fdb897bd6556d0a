"""Requests for engines, and what a plain forward pass says of their completions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from rllm_gym.types import CompletionRequest, SamplingParams


def make_request(name, *, prompt, stop_ids=(), seed=0, **params) -> CompletionRequest:
    return CompletionRequest(name, prompt, stop_ids, SamplingParams(**{"max_new_tokens": 8, **params}), seed)


def run(engine, *requests):
    for r in requests:
        engine.submit(r)
    done = {}
    while len(done) < len(requests):
        done |= {c.request_id: c for c in engine.step()}
    return [done[r.request_id] for r in requests]


def check_early_end(engine, prompt):
    """A request that is over with its third token ends with it; beside another one, and with the same tokens."""
    whole, other = run(engine, *(make_request(f"whole{k}", prompt=prompt, seed=k, max_new_tokens=40) for k in (1, 2)))
    asked = []

    def is_over(ids):
        asked.append(list(ids))
        return len(ids) == 3

    early = replace(make_request("early", prompt=prompt, seed=1, max_new_tokens=40), is_over=is_over)
    beside = make_request("beside", prompt=prompt, seed=2, max_new_tokens=40)
    first, last = run(engine, early, beside)
    assert first.token_ids.tolist() == whole.token_ids[:3].tolist() and len(whole.token_ids) > 3
    np.testing.assert_allclose(first.logp, whole.logp[:3], atol=1e-5)
    assert last.token_ids.tolist() == other.token_ids.tolist()
    assert asked == [whole.token_ids[:k].tolist() for k in (1, 2, 3)]  # none was sampled behind the end


def until_something_ends(engine):
    while not (done := engine.step()):
        pass
    return done


def forward_logp(model, prompt, token_ids, temperature=1.0):
    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt, *token_ids]])).logits[0]
    logp = (logits[len(prompt) - 1 : -1] / temperature).log_softmax(-1)
    return logp[torch.arange(len(token_ids)), torch.as_tensor(token_ids)].numpy()
