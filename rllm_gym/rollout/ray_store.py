"""Small texts that Ray's processes leave for the driver: the only importer of the cluster's key-value store.

The store is private in Ray 2.60 (`ray.experimental.internal_kv`), and public ways cost more: an actor's answer waits
until its sampling is over, and a `ray.util.queue.Queue` is one more process for each run, of 1 s of processor time and
166 MiB on two cores. This file may go once Ray has a public store, or a queue without a process.
"""

from __future__ import annotations

from ray.experimental.internal_kv import (
    _internal_kv_del,
    _internal_kv_get,
    _internal_kv_initialized,
    _internal_kv_list,
    _internal_kv_put,
)


def put(namespace: str, key: str, text: str) -> None:
    """Leave a text under a key, in place of an earlier one; nothing where no Ray runs."""
    if _internal_kv_initialized():
        _internal_kv_put(key, text, namespace=f"rllm_gym/{namespace}")


def get(namespace: str, key: str) -> str | None:
    """Return the text under a key; None where there is none."""
    text = _internal_kv_get(key, namespace=f"rllm_gym/{namespace}") if _internal_kv_initialized() else None
    return None if text is None else text.decode()


def get_all(namespace: str) -> list[str]:
    """Return the texts of a namespace, in the order of their keys."""
    texts = (get(namespace, key) for key in _keys(namespace))
    return [text for text in texts if text is not None]


def take_all(namespace: str) -> list[str]:
    """Return the texts of a namespace, in the order of their keys, and remove them."""
    keys = _keys(namespace)
    texts = [get(namespace, key) for key in keys]
    for key in keys:
        _internal_kv_del(key, namespace=f"rllm_gym/{namespace}")
    return [text for text in texts if text is not None]


def _keys(namespace: str) -> list[str]:
    return sorted(key.decode() for key in _internal_kv_list("", namespace=f"rllm_gym/{namespace}"))
