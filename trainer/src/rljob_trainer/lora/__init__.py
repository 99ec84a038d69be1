"""Low-rank adapters: which layers have one, what they compute, and peft's files.

layers.py     two matrices beside a linear layer of the trainer, and the weight that they add up to
files.py      adapter_config.json and adapter_model.safetensors
base.py       a fingerprint of the model that an adapter belongs to
source.py     the adapter of spec.model.lora.path, which says rank, alpha and modules

Names, in a model and in peft's files:

    model.layers.0.self_attn.q_proj.lora_A.weight [rank, inputs]
    base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight
"""
