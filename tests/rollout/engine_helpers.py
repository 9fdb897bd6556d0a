"""Requests for engines, and what a plain forward pass says of their completions."""

from __future__ import annotations

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


def until_something_ends(engine):
    while not (done := engine.step()):
        pass
    return done


def forward_logp(model, prompt, token_ids, temperature=1.0):
    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt, *token_ids]])).logits[0]
    logp = (logits[len(prompt) - 1 : -1] / temperature).log_softmax(-1)
    return logp[torch.arange(len(token_ids)), torch.as_tensor(token_ids)].numpy()
