#!/usr/bin/env python3
"""Writes test/golden/families/*.json: logits of small models of every served family, from the implementation in `transformers`.

Needs Python 3.10 with torch and transformers 5, which nothing else in this project does:

    OMP_NUM_THREADS=1 python3 scripts/golden-families.py [NAME ...]

A file holds a config.json as the Hub has it, the names and shapes of the tensors of the model that transformers makes of it, token
ids, and logits after some positions: one at the start, one past the sliding window where there is one, and one at 500. Of each row there are 64
fixed entries of the vocabulary, the eight largest, mean, standard deviation and log-sum-exp. The weights are not stored. Both
sides make them from the names of the tensors: element i of a tensor is

    width * (h(i) / 2^23 - 1) + offset,   h = upper 24 bits of mix(FNV-1a(name) + i * 0x9E3779B1)

rounded once to float32, where mix is the finalizer of MurmurHash3 and everything is modulo 2^32. Gains of norms have width 0.25 and offset
1 (0 where the checkpoint leaves the 1 out), biases 0.25 and 0, embeddings 1 and 0, matrices 1.5 * sqrt(3 / inputs) and 0.

All arithmetic is float64: names of the narrower type are bound to it before a model is made, because the implementations convert
to it inside norms, softmax and rotary embeddings. The implementation holds the gates and ups of all experts of a layer in one tensor, and
their downs in another; that is how they are named and shaped here.
"""
import json, math, os, sys
import numpy as np
import torch
import transformers

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
POSITIONS, PROBES = (0, 100, 500), 64

torch.set_default_dtype(torch.float64)
torch.float = torch.float32 = torch.float64
torch.Tensor.float = torch.Tensor.double

BASE = {
    "hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 256, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": None,
}
# Phi-3 and OLMo 2 have no head_dim in their files.
WIDE = {"hidden_size": 256}
LONG = {"type": "longrope", "short_factor": [1 + 0.01 * i for i in range(24)], "long_factor": [1 + 0.25 * i for i in range(24)]}
FULL = dict(LONG, short_factor=[1 + 0.02 * i for i in range(32)], long_factor=[1 + 0.5 * i for i in range(32)])

MODELS = {
    "llama": {"model_type": "llama", "head_dim": 64, "max_position_embeddings": 16384, "rope_theta": 500000.0, "rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192}},
    "mistral": {"model_type": "mistral", "head_dim": 64, "sliding_window": 64},
    "qwen2": {"model_type": "qwen2", **WIDE, "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", "head_dim": 64, "attention_bias": False},
    "smollm3": {"model_type": "smollm3", **WIDE, "num_hidden_layers": 4, "rope_theta": 5000000.0, "tie_word_embeddings": True,
                "no_rope_layers": [1, 1, 1, 0]},
    "phi3-long": {"model_type": "phi3", **WIDE, "original_max_position_embeddings": 256, "rope_scaling": FULL,
                  "sliding_window": 64},
    "phi3-partial": {"model_type": "phi3", **WIDE, "original_max_position_embeddings": 1024, "rope_scaling": LONG,
                     "partial_rotary_factor": 0.75, "tie_word_embeddings": True},
    "granite": {"model_type": "granite", **WIDE, "embedding_multiplier": 12.0, "attention_multiplier": 0.0625,
                "residual_multiplier": 0.22, "logits_scaling": 8.0, "tie_word_embeddings": True},
    "olmo2": {"model_type": "olmo2", **WIDE, "rope_theta": 500000.0, "rms_norm_eps": 1e-6},
    # Caps as small as many scores and logits, so that a model without them gives other logits.
    "gemma2": {"model_type": "gemma2", "head_dim": 64, "num_hidden_layers": 3, "sliding_window": 64, "query_pre_attn_scalar": 64,
               "attn_logit_softcapping": 2.0, "final_logit_softcapping": 8.0, "hidden_activation": "gelu_pytorch_tanh",
               "tie_word_embeddings": True, "rms_norm_eps": 1e-6},
    "gemma3": {"model_type": "gemma3_text", "head_dim": 64, "num_hidden_layers": 3, "rope_theta": 1000000.0,
               "rope_local_base_freq": 10000.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0},
               "sliding_window": 64, "sliding_window_pattern": 2, "query_pre_attn_scalar": 64,
               "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True, "rms_norm_eps": 1e-6},
    "mixtral": {"model_type": "mixtral", "head_dim": 64, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 64},
    "qwen3-moe": {"model_type": "qwen3_moe", "head_dim": 64, "attention_bias": False, "num_experts": 8, "num_experts_per_tok": 3,
                  "moe_intermediate_size": 64, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []},
    # Shares of all experts that are not made to add up to one, and a norm_topk_prob that the file leaves out.
    "qwen3-moe-shares": {"model_type": "qwen3_moe", "head_dim": 64, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 96},
}
UNUSED = {"gemma2": ("hidden_act",), "gemma3": ("hidden_act",)}


def hashes(name, count):
    seed = 2166136261
    for byte in name.encode():
        seed = ((seed ^ byte) * 16777619) & 0xFFFFFFFF
    h = np.arange(count, dtype=np.uint64) * 0x9E3779B1 + seed & 0xFFFFFFFF
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        h = (h ^ (h >> np.uint64(shift))) * np.uint64(factor) & np.uint64(0xFFFFFFFF)
    return (h ^ (h >> np.uint64(16))) >> np.uint64(8)


def weights(name, shape, gain_offset):
    uniform = hashes(name, math.prod(shape)).astype(np.float64) / 2**23 - 1
    if "norm" in name:
        width, offset = 0.25, gain_offset
    elif name.endswith(".bias"):
        width, offset = 0.25, 0
    elif "embed_tokens" in name:
        width, offset = 1, 0
    else:
        width, offset = 1.5 * math.sqrt(3 / shape[-1]), 0
    return (width * uniform + offset).astype(np.float32).reshape(shape)


def row(position, logits):
    order = np.argsort(-logits, kind="stable")[:8]
    largest = logits.max()
    number = lambda value: float(f"{value:.10g}")
    return {
        "position": position,
        "logits": [number(logits[probe]) for probe in range(0, len(logits), len(logits) // PROBES)],
        "topIds": [int(id) for id in order],
        "topLogits": [number(logits[id]) for id in order],
        "mean": number(logits.mean()),
        "std": number(logits.std()),
        "logSumExp": number(largest + math.log(np.exp(logits - largest).sum())),
    }


def golden(name):
    config = {key: value for key, value in {**BASE, **MODELS[name]}.items() if key not in UNUSED.get(name, ())}
    kind = {key: value for key, value in config.items() if key != "model_type"}
    given = json.loads(json.dumps(kind))
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(config["model_type"], **given), attn_implementation="eager",
        experts_implementation="eager", dtype=torch.float64)
    gain_offset = 0 if name.startswith("gemma") else 1
    tensors = []
    with torch.no_grad():
        for tensor, parameter in model.named_parameters():
            tensors.append([tensor, list(parameter.shape)])
            assert parameter.dtype == torch.float64
            parameter.copy_(torch.from_numpy(weights(tensor, tuple(parameter.shape), gain_offset).astype(np.float64)))
        ids = [int(id) for id in hashes("tokens", max(POSITIONS) + 1) % np.uint64(config["vocab_size"])]
        logits = model.eval()(torch.tensor([ids]), use_cache=False).logits[0].numpy()
    assert logits.dtype == np.float64
    return {"version": 1, "transformers": transformers.__version__, "config": config, "gainOffset": gain_offset,
            "tensors": tensors, "rows": [row(position, logits[position]) for position in POSITIONS]}


for name in sys.argv[1:] or MODELS:
    path = os.path.join(ROOT, "test", "golden", "families", f"{name}.json")
    result = golden(name)
    with open(path, "w") as file:
        body = json.dumps({key: value for key, value in result.items() if key != "rows"})[:-1]
        rows = ",\n    ".join(json.dumps(row) for row in result["rows"])
        file.write(f'{body},\n  "rows": [\n    {rows}\n  ]\n}}\n')
    print(path, [round(row["std"], 3) for row in result["rows"]])
