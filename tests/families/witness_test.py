#!/usr/bin/env python3
"""Every family against transformers: three small models of odd shapes each, with random weights that its own
save_pretrained writes. Invar's logits must be no further from transformers' in f32 than transformers' own in bf16 are
(mean of the absolute error), and not systematically off; chunks, instruction sets and orders must not show.

Usage: witness_test.py FAMILY_LOGITS [NAME ...]. Needs a Python with transformers (INVAR_WITNESS, or
/opt/witness/bin/python); without one the test says so and is skipped (77). --control breaks one number of each
configuration that Invar reads: then every family must disagree.
"""
import json, os, subprocess, sys, tempfile

WITNESS = os.environ.get("INVAR_WITNESS", "/opt/witness/bin/python")
try:
    import torch, transformers
except ImportError:
    if not os.path.exists(WITNESS) or sys.executable == WITNESS:
        print(f"SKIPPED families.agree_with_transformers: no transformers here, and no {WITNESS}")
        sys.exit(77)
    os.execv(WITNESS, [WITNESS] + sys.argv)
import numpy

TOKENS = 150
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}


def text(**more):
    return dict(dict(vocab_size=307, hidden_size=60, intermediate_size=100, num_hidden_layers=3, num_attention_heads=6,
                     num_key_value_heads=2, max_position_embeddings=512), **more)


def wide(**more):
    return text(**dict(dict(vocab_size=1001, hidden_size=96, intermediate_size=130, num_attention_heads=6,
                            num_key_value_heads=3), **more))


def longrope(pairs, original=64, **more):
    return dict(rope_type="longrope", rope_theta=10000.0, short_factor=[1 + i / 50 for i in range(pairs)],
                long_factor=[1.5 + i / 5 for i in range(pairs)], original_max_position_embeddings=original, **more)


STATES = dict(linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=24)
GATED = dict(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=40, shared_expert_intermediate_size=64)
UNTURNED = {"rope_type": "default", "rope_theta": None}
NEMOTRON = dict(mamba_num_heads=4, mamba_head_dim=16, n_groups=2, ssm_state_size=24, n_routed_experts=8, num_experts_per_tok=2,
                moe_intermediate_size=40, moe_shared_expert_intermediate_size=64)
LATENT = dict(kv_lora_rank=32, qk_rope_head_dim=8, qk_nope_head_dim=32, v_head_dim=20)
SPARSE = dict(LATENT, num_key_value_heads=6, n_shared_experts=1, n_group=1, topk_group=1)  # and the choice of an indexer
KIMI = dict(LATENT, linear_num_heads=4, linear_head_dim=16, num_local_experts=8, num_experts_per_tok=3, moe_intermediate_size=40)
MIMO_ROPE = {kind: {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": 0.334}
             for kind, theta in (("full_attention", 1e5), ("sliding_attention", 1e4))}
MULTIPLIED = dict(embedding_multiplier=5.5, lm_head_multiplier=0.4, attention_in_multiplier=1.25, attention_out_multiplier=0.9375,
                  key_multiplier=0.390625, mlp_multipliers=[0.88388, 0.5859375], ssm_in_multiplier=1.25, ssm_out_multiplier=0.2357,
                  ssm_multipliers=[0.35355, 0.25, 0.3, 0.5, 0.35])

CASES = {
    "llama": [text(head_dim=14), wide(attention_bias=True, mlp_bias=True, rope_parameters=YARN), wide(head_dim=32)],
    "qwen3": [text(head_dim=16), wide(head_dim=32, rope_parameters=YARN),
              wide(head_dim=20, use_sliding_window=True, sliding_window=24, max_window_layers=1)],
    "smollm3": [text(no_rope_layer_interval=2), wide(no_rope_layers=[0, 1, 1]), wide(attention_bias=True)],
    "granite": [text(embedding_multiplier=12.0, residual_multiplier=0.22, logits_scaling=8.0,
                     attention_multiplier=0.0625),
                wide(embedding_multiplier=6.0, attention_multiplier=0.2, attention_bias=True),
                wide(logits_scaling=16.0, residual_multiplier=0.5, mlp_bias=True, attention_multiplier=0.25)],
    "olmo2": [text(), wide(), wide(attention_bias=False, num_key_value_heads=6)],
    "olmo3": [text(sliding_window=24, num_hidden_layers=4), wide(sliding_window=40, num_hidden_layers=4,
              rope_parameters={"full_attention": dict(YARN), "sliding_attention": dict(ROPE)}),
              wide(sliding_window=17, layer_types=["sliding_attention", "full_attention", "sliding_attention"])],
    "exaone4": [text(sliding_window=24, sliding_window_pattern=4, num_hidden_layers=4, head_dim=14),
                wide(sliding_window=None, head_dim=16, layer_types=["full_attention"] * 3),
                wide(sliding_window=30, head_dim=24, layer_types=["sliding_attention", "full_attention", "sliding_attention"])],
    "glm4": [text(head_dim=16), wide(head_dim=32, attention_bias=True), wide(head_dim=20, attention_bias=False)],
    "phi3": [text(pad_token_id=0), wide(sliding_window=24, pad_token_id=0, hidden_size=96, rope_parameters=longrope(8)),
             wide(pad_token_id=0, hidden_size=96, max_position_embeddings=512, original_max_position_embeddings=256,
                  rope_parameters=longrope(6, 256, partial_rotary_factor=0.75))],
    "seed_oss": [text(head_dim=16), wide(head_dim=32, attention_out_bias=True), wide(head_dim=20, mlp_bias=True)],
    "internlm3": [text(head_dim=14), wide(head_dim=16, attention_bias=True, mlp_bias=True), wide(head_dim=32)],
    "hunyuan_v1_dense": [text(head_dim=14), wide(head_dim=16, attention_bias=True),
                         wide(head_dim=32, rope_parameters={"rope_type": "dynamic", "alpha": 1000.0, "factor": 1.0,
                                                            "rope_theta": 10000.0})],
    "ministral": [text(head_dim=14, sliding_window=24), wide(head_dim=32, sliding_window=300),
                  wide(head_dim=16, sliding_window=24,
                       layer_types=["sliding_attention", "full_attention", "sliding_attention"])],
    "ministral3": [text(head_dim=14, rope_parameters=dict(YARN, original_max_position_embeddings=256,
                                                           llama_4_scaling_beta=0.1)),
                   wide(head_dim=16, rope_parameters=dict(YARN, mscale=1.0, mscale_all_dim=0.5, llama_4_scaling_beta=0.0)),
                   wide(head_dim=32, rope_parameters=dict(YARN, factor=16.0, llama_4_scaling_beta=0.0))],
    "gemma2": [text(head_dim=16, query_pre_attn_scalar=16, sliding_window=24),
               wide(head_dim=32, query_pre_attn_scalar=144, sliding_window=40, attn_logit_softcapping=5.0),
               wide(head_dim=20, query_pre_attn_scalar=24, sliding_window=24, final_logit_softcapping=2.0)],
    "gemma3_text": [text(head_dim=16, query_pre_attn_scalar=16, sliding_window=24),
                    wide(head_dim=32, query_pre_attn_scalar=144, sliding_window=40, num_hidden_layers=4,
                         layer_types=["sliding_attention", "full_attention"] * 2),
                    wide(head_dim=20, query_pre_attn_scalar=24, sliding_window=24, num_hidden_layers=7)],
    # Attention in both directions.
    "gemma3_text ahead": [text(head_dim=16, query_pre_attn_scalar=16, sliding_window=24, use_bidirectional_attention=True),
                          wide(head_dim=32, query_pre_attn_scalar=144, sliding_window=41, num_hidden_layers=4, is_causal=False,
                               layer_types=["sliding_attention", "full_attention"] * 2)],
    "qwen3 ahead": [text(head_dim=16, is_causal=False, tie_word_embeddings=True),
                    wide(head_dim=20, use_sliding_window=True, sliding_window=24, max_window_layers=1, is_causal=False,
                         tie_word_embeddings=True)],
    # Shared keys and values, what tokens bring to layers, wide late layers; heads of 512, keys as values; experts beside the MLP.
    "gemma4_text": [text(head_dim=16, global_head_dim=32, sliding_window=24, num_hidden_layers=6, num_kv_shared_layers=3,
                         layer_types=["sliding_attention", "full_attention"] * 3, hidden_size_per_layer_input=8,
                         vocab_size_per_layer_input=307, use_double_wide_mlp=True, final_logit_softcapping=30.0),
                    wide(head_dim=32, global_head_dim=512, num_global_key_value_heads=2, attention_k_eq_v=True, sliding_window=40,
                         num_hidden_layers=4, layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 1
                         + ["full_attention"], hidden_size_per_layer_input=0, final_logit_softcapping=10.0),
                    wide(head_dim=20, global_head_dim=40, num_global_key_value_heads=1, attention_k_eq_v=True, sliding_window=17,
                         num_hidden_layers=4, layer_types=["sliding_attention", "full_attention"] * 2, hidden_size_per_layer_input=24,
                         vocab_size_per_layer_input=1001, enable_moe_block=True, num_experts=8, top_k_experts=3,
                         moe_intermediate_size=40)],
    "falcon": [text(hidden_size=60, num_attention_heads=6, multi_query=True),
               text(hidden_size=96, num_attention_heads=6, num_kv_heads=2, new_decoder_architecture=True, bias=True,
                    ffn_hidden_size=130, vocab_size=1001),
               text(hidden_size=96, num_attention_heads=4, num_kv_heads=2, new_decoder_architecture=True,
                    num_ln_in_parallel_attn=1, tie_word_embeddings=False)],
    # With experts; the second and third shape's checkpoints hold all experts in one tensor, as the library does itself.
    "qwen3_moe": [text(head_dim=16, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=40, norm_topk_prob=True),
                  wide(head_dim=32, num_experts=12, num_experts_per_tok=5, moe_intermediate_size=48, mlp_only_layers=[1]),
                  wide(head_dim=20, num_experts=16, num_experts_per_tok=4, moe_intermediate_size=33, norm_topk_prob=True,
                       decoder_sparse_step=2)],
    "qwen2_moe": [text(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=40, shared_expert_intermediate_size=64),
                  wide(num_experts=6, num_experts_per_tok=3, moe_intermediate_size=48, shared_expert_intermediate_size=100,
                       norm_topk_prob=True),
                  wide(num_experts=16, num_experts_per_tok=4, moe_intermediate_size=33, shared_expert_intermediate_size=40,
                       mlp_only_layers=[0], qkv_bias=False)],
    "mixtral": [text(num_local_experts=4, num_experts_per_tok=2), wide(num_local_experts=8, num_experts_per_tok=3, head_dim=16),
                wide(num_local_experts=5, num_experts_per_tok=2, head_dim=32, sliding_window=24)],
    "granitemoe": [text(embedding_multiplier=12.0, residual_multiplier=0.22, logits_scaling=8.0, attention_multiplier=0.0625,
                        num_local_experts=8, num_experts_per_tok=2),
                   wide(num_local_experts=6, num_experts_per_tok=3, attention_multiplier=0.2, attention_bias=True),
                   wide(num_local_experts=16, num_experts_per_tok=4, residual_multiplier=0.5, attention_multiplier=0.25)],
    "glm4_moe": [text(num_mtp_layers=0, head_dim=16, n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=40, n_shared_experts=1),
                 wide(num_mtp_layers=0, head_dim=32, n_routed_experts=16, num_experts_per_tok=4, moe_intermediate_size=48, n_group=4, topk_group=2,
                      routed_scaling_factor=2.5, attention_bias=True, use_qk_norm=True, n_shared_experts=2),
                 wide(num_mtp_layers=0, head_dim=20, n_routed_experts=12, num_experts_per_tok=3, moe_intermediate_size=33, norm_topk_prob=False,
                      first_k_dense_replace=0, n_shared_experts=1)],
    "deepseek_v2": [text(num_key_value_heads=6, q_lora_rank=None, kv_lora_rank=32, qk_rope_head_dim=8, qk_nope_head_dim=32, v_head_dim=20,
                         n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=40, n_shared_experts=1,
                         first_k_dense_replace=1, topk_method="greedy", n_group=1, topk_group=1),
                    wide(num_key_value_heads=6, q_lora_rank=40, kv_lora_rank=64, qk_rope_head_dim=16, qk_nope_head_dim=32, v_head_dim=32,
                         n_routed_experts=12, num_experts_per_tok=4, moe_intermediate_size=48, n_shared_experts=2,
                         first_k_dense_replace=0, topk_method="group_limited_greedy", n_group=4, topk_group=2,
                         routed_scaling_factor=2.0, rope_parameters=dict(YARN, mscale=0.7, mscale_all_dim=0.9)),
                    wide(num_key_value_heads=6, q_lora_rank=None, kv_lora_rank=96, qk_rope_head_dim=12, qk_nope_head_dim=64, v_head_dim=24,
                         n_routed_experts=16, num_experts_per_tok=4, moe_intermediate_size=33, n_shared_experts=1,
                         first_k_dense_replace=2, topk_method="greedy", n_group=1, topk_group=1)],
    "deepseek_v3": [text(num_mtp_layers=0, num_key_value_heads=6, q_lora_rank=None, kv_lora_rank=32, qk_rope_head_dim=8, qk_nope_head_dim=32,
                         v_head_dim=20, n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=40,
                         n_shared_experts=1, first_k_dense_replace=1, n_group=1, topk_group=1),
                    wide(num_mtp_layers=0, num_key_value_heads=6, q_lora_rank=40, kv_lora_rank=64, qk_rope_head_dim=16, qk_nope_head_dim=32,
                         v_head_dim=32, n_routed_experts=16, num_experts_per_tok=4, moe_intermediate_size=48,
                         n_shared_experts=2, first_k_dense_replace=0, n_group=4, topk_group=2, routed_scaling_factor=2.5,
                         rope_parameters=dict(YARN, mscale=0.7, mscale_all_dim=0.9)),
                    wide(num_mtp_layers=0, num_key_value_heads=6, q_lora_rank=48, kv_lora_rank=96, qk_rope_head_dim=12, qk_nope_head_dim=64,
                         v_head_dim=24, n_routed_experts=12, num_experts_per_tok=4, moe_intermediate_size=33,
                         n_shared_experts=1, first_k_dense_replace=2, n_group=1, topk_group=1, norm_topk_prob=False)],
    "gpt_oss": [text(head_dim=16, num_local_experts=8, num_experts_per_tok=2, sliding_window=24, num_hidden_layers=4,
                     rope_parameters=dict(YARN, beta_fast=32.0, beta_slow=1.0, truncate=False)),
                wide(head_dim=32, num_local_experts=6, num_experts_per_tok=4, sliding_window=300, rope_parameters=ROPE),
                wide(head_dim=20, num_local_experts=16, num_experts_per_tok=3, sliding_window=40, attention_bias=False,
                     rope_parameters=ROPE, layer_types=["full_attention", "sliding_attention", "sliding_attention"])],
    # With states: head sizes that are no whole panels or leaves, key heads of one and of several value heads.
    "qwen3_next": [text(head_dim=16, num_hidden_layers=4, **STATES, **GATED),
                   wide(head_dim=32, num_hidden_layers=5, **dict(STATES, linear_num_value_heads=2, linear_key_head_dim=40),
                        **dict(GATED, num_experts=12, num_experts_per_tok=3), mlp_only_layers=[1]),
                   wide(head_dim=16, layer_types=["full_attention", "linear_attention", "linear_attention"],
                        **dict(STATES, linear_num_value_heads=6, linear_conv_kernel_dim=3), **dict(GATED, norm_topk_prob=False))],
    "qwen3_5_text": [text(head_dim=16, num_hidden_layers=4, **STATES), wide(head_dim=32, num_hidden_layers=5, **dict(STATES, linear_num_value_heads=2)),
                     wide(head_dim=16, tie_word_embeddings=True, layer_types=["linear_attention", "full_attention", "linear_attention"],
                          **dict(STATES, linear_num_value_heads=6))],
    "qwen3_5_moe_text": [text(head_dim=16, num_hidden_layers=4, **STATES, **GATED),
                         wide(head_dim=32, num_hidden_layers=4, **STATES, **dict(GATED, num_experts=12, num_experts_per_tok=3)),
                         wide(head_dim=16, layer_types=["full_attention", "linear_attention", "linear_attention"], **STATES, **GATED)],
    "lfm2": [text(num_hidden_layers=4, layer_types=["conv", "conv", "full_attention", "conv"], block_auto_adjust_ff_dim=False),
             wide(layer_types=["full_attention", "conv", "conv"], conv_L_cache=4, block_multiple_of=32),
             wide(layer_types=["conv", "full_attention", "conv"], tie_word_embeddings=False, block_ffn_dim_multiplier=1.5,
                  block_multiple_of=16)],
    "lfm2_moe": [text(num_hidden_layers=4, layer_types=["conv", "conv", "full_attention", "conv"], num_dense_layers=1, num_experts=8,
                      num_experts_per_tok=2, moe_intermediate_size=40),
                 wide(layer_types=["full_attention", "conv", "conv"], num_dense_layers=0, num_experts=12, num_experts_per_tok=3,
                      moe_intermediate_size=48, norm_topk_prob=False),
                 wide(layer_types=["conv", "full_attention", "conv"], num_dense_layers=2, num_experts=16, num_experts_per_tok=4,
                      moe_intermediate_size=33, routed_scaling_factor=2.5, tie_word_embeddings=False)],
    "granitemoehybrid": [text(layer_types=["mamba", "attention", "mamba"], mamba_n_heads=6, mamba_d_state=24, num_local_experts=8,
                              num_experts_per_tok=2, shared_intermediate_size=64, embedding_multiplier=12.0,
                              residual_multiplier=0.22, logits_scaling=8.0, attention_multiplier=0.0625),
                         wide(layer_types=["mamba", "attention", "mamba"], mamba_n_heads=4, mamba_n_groups=2, mamba_d_state=16,
                              num_local_experts=0, shared_intermediate_size=130, position_embedding_type="rope",
                              attention_multiplier=0.25),
                         wide(layer_types=["attention", "mamba", "mamba"], mamba_n_heads=12, mamba_n_groups=3, mamba_d_state=40,
                              mamba_d_conv=3, mamba_conv_bias=False, num_local_experts=6, num_experts_per_tok=3,
                              shared_intermediate_size=48, attention_multiplier=0.2, time_step_limit=[0.01, 0.5])],
    "nemotron_h": [text(head_dim=16, layers_block_type=["mamba", "mlp", "attention", "moe"], **NEMOTRON),
                   wide(head_dim=32, layers_block_type=["attention", "moe", "mamba", "mamba", "mlp"],
                        **dict(NEMOTRON, n_groups=1, use_conv_bias=False, n_routed_experts=12, n_group=3, topk_group=2)),
                   wide(head_dim=20, layers_block_type=["mamba", "moe", "attention", "mlp"],
                        **dict(NEMOTRON, mamba_num_heads=6, norm_topk_prob=False, routed_scaling_factor=2.5)),
                   # Experts that read a latent vector.
                   wide(head_dim=20, layers_block_type=["mamba", "moe", "attention", "moe"], **dict(NEMOTRON, moe_latent_size=36))],
    "kimi_linear": [text(num_key_value_heads=6, layer_types=["linear_attention", "full_attention", "linear_attention"], **KIMI),
                    wide(num_key_value_heads=6, layer_types=["full_attention", "linear_attention", "linear_attention"],
                         **dict(KIMI, q_lora_rank=40, linear_head_dim=24, linear_conv_kernel_dim=3, norm_topk_prob=False)),
                    wide(num_key_value_heads=6, layer_types=["linear_attention", "linear_attention", "full_attention"],
                         mlp_layer_types=["dense", "dense", "sparse"],
                         **dict(KIMI, num_local_experts=12, n_group=3, topk_group=2, routed_scaling_factor=1.5))],
    "olmo_hybrid": [text(num_hidden_layers=4, **dict(STATES, linear_key_head_dim=48)),
                    wide(rope_parameters=UNTURNED, layer_types=["full_attention", "linear_attention", "linear_attention"],
                         **dict(STATES, linear_num_value_heads=2, linear_allow_neg_eigval=False)),
                    wide(rope_parameters=UNTURNED, layer_types=["linear_attention", "full_attention", "linear_attention"],
                         **dict(STATES, linear_num_key_heads=3, linear_num_value_heads=3, linear_conv_kernel_dim=3))],
    "minimax_m2": [text(head_dim=16, num_local_experts=8, num_experts_per_tok=2, rope_parameters=dict(ROPE, partial_rotary_factor=0.5)),
                   wide(head_dim=32, num_local_experts=12, num_experts_per_tok=3, rope_parameters=dict(ROPE, partial_rotary_factor=1.0)),
                   wide(head_dim=20, num_local_experts=6, num_experts_per_tok=4, rope_parameters=dict(ROPE, partial_rotary_factor=0.5))],
    "hy_v3": [text(head_dim=14, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=40),
              wide(head_dim=32, num_experts=12, num_experts_per_tok=3, moe_intermediate_size=48, num_shared_experts=2,
                   mlp_layer_types=["sparse", "dense", "sparse"]),
              wide(head_dim=20, num_experts=6, num_experts_per_tok=4, moe_intermediate_size=33, router_scaling_factor=1.5)],
    "glm4_moe_lite": [text(num_key_value_heads=6, q_lora_rank=None, n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=40, **LATENT),
                      wide(num_key_value_heads=6, q_lora_rank=40, n_routed_experts=16, num_experts_per_tok=4, moe_intermediate_size=48,
                           n_group=4, topk_group=2, mlp_layer_types=["sparse", "dense", "sparse"], **LATENT),
                      wide(num_key_value_heads=6, q_lora_rank=48, n_routed_experts=12, num_experts_per_tok=4, moe_intermediate_size=33,
                           norm_topk_prob=False, **dict(LATENT, kv_lora_rank=96, qk_rope_head_dim=12, qk_nope_head_dim=64))],
    "deepseek_v32": [text(q_lora_rank=40, n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=40, first_k_dense_replace=1,
                          index_n_heads=4, index_head_dim=32, index_topk=40, **SPARSE),
                     wide(q_lora_rank=48, n_routed_experts=16, num_experts_per_tok=4, moe_intermediate_size=48, first_k_dense_replace=0,
                          index_n_heads=17, index_head_dim=64, index_topk=96, rope_parameters=dict(YARN, mscale=0.7, mscale_all_dim=0.9),
                          **dict(SPARSE, n_group=4, topk_group=2)),
                     wide(q_lora_rank=32, n_routed_experts=12, num_experts_per_tok=4, moe_intermediate_size=33, first_k_dense_replace=2,
                          index_n_heads=8, index_head_dim=128, index_topk=17, **dict(SPARSE, kv_lora_rank=96, qk_rope_head_dim=12))],
    "glm_moe_dsa": [text(q_lora_rank=40, n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=40, first_k_dense_replace=1,
                         index_n_heads=4, index_head_dim=32, index_topk=40, **SPARSE),
                    wide(q_lora_rank=48, n_routed_experts=16, num_experts_per_tok=4, moe_intermediate_size=48, num_hidden_layers=4,
                         index_n_heads=6, index_head_dim=64, index_topk=96, indexer_types=["full", "shared", "full", "shared"],
                         mlp_layer_types=["dense", "sparse", "sparse", "sparse"], **SPARSE),
                    wide(q_lora_rank=32, n_routed_experts=12, num_experts_per_tok=4, moe_intermediate_size=33, first_k_dense_replace=2,
                         index_n_heads=8, index_head_dim=128, index_topk=17, indexer_types=["full", "shared", "shared"],
                         **dict(SPARSE, kv_lora_rank=96, qk_rope_head_dim=12))],
    "mistral4": [text(num_key_value_heads=6, q_lora_rank=None, n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=40,
                      rope_parameters=dict(YARN, original_max_position_embeddings=256, llama_4_scaling_beta=0.1), **LATENT),
                 wide(num_key_value_heads=6, q_lora_rank=40, n_routed_experts=16, num_experts_per_tok=4, moe_intermediate_size=48, n_group=4,
                      topk_group=2, rope_parameters=dict(YARN, mscale=1.0, mscale_all_dim=0.5, llama_4_scaling_beta=0.0), **LATENT),
                 wide(num_key_value_heads=6, q_lora_rank=48, n_routed_experts=12, num_experts_per_tok=4, moe_intermediate_size=33,
                      first_k_dense_replace=1, norm_topk_prob=False, rope_parameters=dict(YARN, factor=16.0, llama_4_scaling_beta=0.0),
                      **dict(LATENT, kv_lora_rank=96, qk_rope_head_dim=12, qk_nope_head_dim=64))],
    "llama4_text": [text(head_dim=16, intermediate_size_mlp=100, num_hidden_layers=4, num_local_experts=4, num_experts_per_tok=1,
                         attention_chunk_size=24, floor_scale=32, attn_scale=0.5, interleave_moe_layer_step=2),
                    # With 6 experts row 0's second and third logit are 0.0004 apart, and in bf16 it goes through the other one.
                    wide(head_dim=32, intermediate_size=48, intermediate_size_mlp=130, num_hidden_layers=5, num_local_experts=5,
                         num_experts_per_tok=2, attention_chunk_size=100, floor_scale=40, no_rope_layers=[1, 0, 1, 1, 0],
                         moe_layers=[0, 3], attention_bias=True, use_qk_norm=False),
                    wide(head_dim=20, intermediate_size=33, intermediate_size_mlp=64, num_local_experts=8, num_experts_per_tok=1,
                         attention_chunk_size=64, no_rope_layer_interval=2, attn_temperature_tuning=False,
                         layer_types=["chunked_attention", "full_attention", "full_attention"])],
    "mimo_v2_flash": [text(head_dim=24, v_head_dim=16, n_routed_experts=8, num_experts_per_tok=2, moe_intermediate_size=40, sliding_window=24,
                           num_hidden_layers=7, num_key_value_heads=3, rope_parameters=MIMO_ROPE),
                      wide(head_dim=32, v_head_dim=16, n_routed_experts=12, num_experts_per_tok=3, moe_intermediate_size=48,
                           sliding_window=40, rope_parameters=MIMO_ROPE, attention_value_scale=None, attention_bias=True,
                           layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                           mlp_layer_types=["sparse", "dense", "sparse"]),
                      wide(head_dim=48, v_head_dim=32, n_routed_experts=6, num_experts_per_tok=3, moe_intermediate_size=33, sliding_window=17,
                           n_group=2, topk_group=1, norm_topk_prob=False, routed_scaling_factor=1.5, rope_parameters=MIMO_ROPE)],
    "falcon_h1": [text(head_dim=16, mamba_d_ssm=48, mamba_n_heads=4, mamba_d_state=24, **MULTIPLIED),
                  wide(head_dim=32, mamba_d_ssm=96, mamba_n_heads=6, mamba_n_groups=2, mamba_d_state=16, mamba_rms_norm=True,
                       mamba_norm_before_gate=False, attention_bias=True, mlp_bias=True, **MULTIPLIED),
                  wide(head_dim=20, mamba_d_ssm=None, mamba_n_heads=8, mamba_d_head="auto", mamba_n_groups=2, mamba_d_state=40,
                       mamba_rms_norm=True, mamba_d_conv=3, mamba_conv_bias=False, tie_word_embeddings=True, lm_head_multiplier=0.5)],
    "olmoe": [text(num_experts=8, num_experts_per_tok=3), wide(num_experts=16, num_experts_per_tok=4, norm_topk_prob=True),
              wide(num_experts=6, num_experts_per_tok=2, num_key_value_heads=6)],
}
# Models that read images, too: their text.
MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
TINY = dict(hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
QWEN = dict(depth=1, num_heads=2)
TOWERS = {
    "qwen2_vl": (dict(rope_parameters=MROPE), dict(QWEN, embed_dim=32, hidden_size=96, mlp_ratio=2)),
    "qwen2_5_vl": (dict(rope_parameters=MROPE), dict(QWEN, hidden_size=32, intermediate_size=32, out_hidden_size=96,
                                                     fullatt_block_indexes=[0])),
    "qwen3_vl": (dict(head_dim=16, rope_parameters=dict(MROPE, mrope_interleaved=True)),
                 dict(QWEN, hidden_size=32, intermediate_size=32, out_hidden_size=96, deepstack_visual_indexes=[0])),
    "qwen3_vl_moe": (dict(head_dim=16, num_experts=6, num_experts_per_tok=4, moe_intermediate_size=40,
                          rope_parameters=dict(MROPE, mrope_interleaved=True)),
                     dict(QWEN, hidden_size=32, intermediate_size=32, out_hidden_size=96, deepstack_visual_indexes=[0])),
    "llama4": (dict(head_dim=16, intermediate_size=48, intermediate_size_mlp=130, num_local_experts=4, num_experts_per_tok=1,
                    attention_chunk_size=40, interleave_moe_layer_step=2),
               dict(hidden_size=32, intermediate_size=128, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14,
                    vision_output_dim=32, projector_input_dim=32, projector_output_dim=32)),
    "mistral3": (dict(model_type="mistral", head_dim=16, sliding_window=None), dict(TINY, model_type="pixtral", head_dim=16)),
    "gemma4": (dict(model_type="gemma4_text", head_dim=16, global_head_dim=32, sliding_window=24, num_hidden_layers=4,
                    num_kv_shared_layers=2, layer_types=["sliding_attention", "full_attention"] * 2, hidden_size_per_layer_input=8,
                    vocab_size_per_layer_input=1001),
               dict(TINY, head_dim=16, num_key_value_heads=2, patch_size=4, position_embedding_size=64)),
    "gemma3": (dict(model_type="gemma3_text", head_dim=16, sliding_window=24, query_pre_attn_scalar=16),
               dict(TINY, model_type="siglip_vision_model", image_size=28, patch_size=14)),
}
for family, (more, image) in TOWERS.items():
    CASES[family] = [dict(vocab_size=1001, text_config=wide(bos_token_id=1, eos_token_id=2, **more), vision_config=image)]
FALCON_DROPS = ("intermediate_size", "num_key_value_heads")


def has_experts(shape):
    return any(key in part for key in ("num_experts_per_tok", "top_k_experts") for part in (shape, shape.get("text_config", {})))


def make(family, number, shape, directory):
    shape = dict(shape)
    if family == "falcon":
        for key in FALCON_DROPS:
            shape.pop(key, None)
    torch.manual_seed(number + 1)
    is_tower = family in TOWERS
    if is_tower:
        shape.pop("vocab_size")
    else:
        shape = dict(dict(bos_token_id=1, eos_token_id=2, pad_token_id=0), **shape)
    config = transformers.AutoConfig.for_model(family.split()[0], **shape)
    config._attn_implementation = "eager"
    kind = transformers.AutoModelForImageTextToText if is_tower else transformers.AutoModelForCausalLM
    if family == "mistral4":  # which that does not know
        kind = transformers.Mistral4ForCausalLM
    model = kind(config) if family == "mistral4" else kind.from_config(config)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if tensor.dim() > 2 and "experts" not in name:
                continue  # of images
            if family == "gpt_oss" and name.endswith(("sinks", "gate_up_proj")):  # sinks that show, pairs that are clamped
                tensor.copy_(torch.randn_like(tensor) * (2 if tensor.dim() == 1 else 6 / tensor.shape[1] ** 0.5))
            elif tensor.dim() == 1:  # norms and biases that are nothing special
                tensor.add_(torch.randn_like(tensor) * 0.1)
            elif "embed" in name or "word_embeddings" in name or "router.proj" in name:  # whose input is divided by sqrt(D)
                tensor.copy_(torch.randn_like(tensor))
            else:
                tensor.copy_(torch.randn_like(tensor) / tensor.shape[-1] ** 0.5)
        for name, tensor in model.named_buffers():
            if name.endswith(("e_score_correction_bias", "expert_bias")):
                tensor.copy_(torch.randn_like(tensor) * 0.1)
            if name.endswith("layer_scalar"):
                tensor.copy_(0.6 + torch.rand_like(tensor))
    # The f32 witness evaluates the same numbers.
    model.to(torch.bfloat16).save_pretrained(directory, **(dict(save_original_format=False) if number else {}))
    plain = dict(attn_implementation="eager", **(dict(experts_implementation="eager") if has_experts(shape) else {}))
    load = lambda dtype: kind.from_pretrained(directory, dtype=dtype, **plain).eval()
    return load(torch.bfloat16), load(torch.float32)


def logits_of(tool, directory, tokens, order="portable", chunk=1 << 20, instruction_set="auto"):
    """With a server's context that takes the same factors as transformers does for these tokens."""
    config = json.load(open(f"{directory}/config.json"))
    rope = config.get("rope_parameters") or {}
    is_short = rope.get("rope_type") == "longrope" and len(tokens) <= rope["original_max_position_embeddings"]
    more = (order, chunk, instruction_set, rope["original_max_position_embeddings"] if is_short else 0)
    with tempfile.TemporaryDirectory() as scratch:
        numpy.array(tokens, dtype=numpy.int32).tofile(f"{scratch}/tokens")
        done = subprocess.run([tool, directory, f"{scratch}/tokens", f"{scratch}/out", *map(str, more)],
                              capture_output=True, text=True)
        assert done.returncode == 0, done.stderr.strip()
        return numpy.fromfile(f"{scratch}/out", dtype=numpy.float32).reshape(len(tokens), -1)


def spoil(directory):
    """Another number in the configuration than the one that the weights were evaluated with."""
    path = f"{directory}/config.json"
    config = json.load(open(path))
    for part in (config, config.get("text_config", {})):
        if part.get("is_causal") is False or part.get("use_bidirectional_attention"):  # else both ways
            part.update((key, None) for key in ("is_causal", "use_bidirectional_attention") if key in part)
            continue
        for key in ("rms_norm_eps", "layer_norm_epsilon", "norm_eps"):
            if key in part:
                part[key] = 0.3
        if "residual_multiplier" in part:  # whose embedding is too large for that to show
            part["residual_multiplier"] *= 1.5
    json.dump(config, open(path, "w"))


def check(tool, family, number, shape, control):
    with tempfile.TemporaryDirectory() as directory:
        tokens = torch.randint(3, shape["vocab_size"], (1, TOKENS), generator=torch.Generator().manual_seed(number))
        rounded, model = make(family, number, shape, directory)
        with torch.no_grad():
            usual = rounded(tokens).logits[0].float().numpy()
            exact = model(tokens).logits[0].numpy()
        if control:
            spoil(directory)
        row = tokens[0].tolist()
        found = logits_of(tool, directory, row)
        error, own = numpy.abs(found - exact), numpy.abs(usual - exact)
        bias = abs((found - exact).mean()) / (found - exact).std()
        # Without a cache other schedules must be the same bits.
        chunks = (7, 150, 64) if "ahead" not in family else (150, 150, 150)
        same = all(numpy.array_equal(found, logits_of(tool, directory, row, "portable", *more))
                   for more in zip(chunks, ("auto", "scalar", "avx2")))
        hopper = logits_of(tool, directory, row, "hopper")
        hopper_error = numpy.abs(hopper - exact).mean()
        f32 = None
        with tempfile.TemporaryDirectory() as widened:
            model.save_pretrained(widened)
            if control:
                spoil(widened)
            f32 = numpy.abs(logits_of(tool, widened, row) - exact).mean()
        # Where rows choose experts, one that chooses another is most of an error: which mode has one is chance.
        f32_bound = own.mean() if has_experts(shape) else error.mean()
        good = error.mean() <= own.mean() and hopper_error <= own.mean() and f32 <= f32_bound and same and bias < 0.1
        print(f"{family:18} {number}: mean error {error.mean():.5f}, hopper {hopper_error:.5f}, f32 weights {f32:.5f}, "
              f"transformers in bf16 {own.mean():.5f}, largest {error.max():.4f}, deviation of logits {exact.std():.2f}"
              f"{'' if same else ', SCHEDULES DIFFER'}{'' if good else '  WRONG'}", flush=True)
        return good


def check_mxfp4(tool, control):
    """gpt-oss with its experts in MXFP4: the bits of the bf16 model that transformers' own function makes of the blocks."""
    from safetensors.torch import load_file, save_file
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors
    shape = wide(hidden_size=96, intermediate_size=64, head_dim=16, num_local_experts=5, num_experts_per_tok=2,
                 sliding_window=40, rope_parameters=ROPE)
    with tempfile.TemporaryDirectory() as twin, tempfile.TemporaryDirectory() as packed:
        make("gpt_oss", 1, shape, twin)
        tensors, blocks = load_file(f"{twin}/model.safetensors"), {}
        for name in [name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
            experts, inputs, outputs = tensors[name].shape
            blocks[name + "_blocks"] = torch.randint(0, 256, (experts, outputs, inputs // 32, 16), dtype=torch.uint8)
            blocks[name + "_scales"] = torch.randint(121, 126, (experts, outputs, inputs // 32), dtype=torch.uint8)
            tensors[name] = convert_moe_packed_tensors(blocks[name + "_blocks"], blocks[name + "_scales"])
        save_file(tensors, f"{twin}/model.safetensors")
        others = {name: tensor for name, tensor in tensors.items() if f"{name}_blocks" not in blocks}
        if control:
            blocks["model.layers.1.mlp.experts.down_proj_scales"][0, 0, 0] ^= 1
        save_file(others | blocks, f"{packed}/model.safetensors")
        config = json.load(open(f"{twin}/config.json"))
        config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
        json.dump(config, open(f"{packed}/config.json", "w"))
        row = torch.randint(3, 1001, (TOKENS,), generator=torch.Generator().manual_seed(5)).tolist()
        same = numpy.array_equal(logits_of(tool, packed, row), logits_of(tool, twin, row))
        print(f"gpt_oss in MXFP4: {'the bits of its twin' if same else 'OTHER BITS than its twin'}", flush=True)
        return same


MODULES = {"qwen3_next": wide(num_hidden_layers=4, head_dim=16, **STATES, **GATED),
           "qwen3_5_text": wide(num_hidden_layers=4, head_dim=32, mtp_num_hidden_layers=1, **STATES),
           "qwen3_5_moe_text": wide(num_hidden_layers=4, head_dim=16, mtp_num_hidden_layers=1, **STATES, **GATED)}


def make_module(model, seed):
    """A module as Qwen publishes it, of transformers' own classes: tensors by name, and the layers."""
    config = model.config
    torch.manual_seed(seed)
    full = config.layer_types.index("full_attention")
    norm = lambda: type(model.model.norm)(config.hidden_size, eps=config.rms_norm_eps)
    parts = torch.nn.ModuleDict({"fc": torch.nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False), "norm": norm(),
                                 "pre_fc_norm_embedding": norm(), "pre_fc_norm_hidden": norm(),
                                 "layers": torch.nn.ModuleList([type(model.model.layers[full])(config, full)])})
    with torch.no_grad():
        for name, tensor in parts.named_parameters():
            tensor.copy_(torch.randn_like(tensor) * (0.1 if tensor.dim() == 1 else tensor.shape[-1] ** -0.5))
    return parts.to(torch.bfloat16)


def module_logits(model, parts, tokens):
    count = tokens.shape[1] - 1
    hidden = model.model(tokens).last_hidden_state[:, :-1]  # behind the final norm
    embedded = model.model.embed_tokens(tokens[:, 1:])
    x = parts["fc"](torch.cat([parts["pre_fc_norm_embedding"](embedded), parts["pre_fc_norm_hidden"](hidden)], -1))
    mask = torch.full((count, count), torch.finfo(x.dtype).min, dtype=x.dtype).triu(1)[None, None]
    positions = torch.arange(count)[None]
    x = parts["layers"][0](x, position_embeddings=model.model.rotary_emb(x, positions), attention_mask=mask, position_ids=positions)
    return model.lm_head(parts["norm"](x[0] if isinstance(x, tuple) else x))[0].float().numpy()


def check_module(tool, family, control):
    """The module of multi-token prediction as the family publishes it."""
    from safetensors.torch import load_file, save_file
    with tempfile.TemporaryDirectory() as directory:
        shape = MODULES[family]
        rounded, model = make(family, 3, shape, directory)
        parts = make_module(rounded, 11)
        module = {f"mtp.{name}": tensor.contiguous() for name, tensor in parts.state_dict().items()}
        save_file(load_file(f"{directory}/model.safetensors") | module, f"{directory}/model.safetensors")
        if control:
            spoil(directory)
        tokens = torch.randint(3, shape["vocab_size"], (1, TOKENS), generator=torch.Generator().manual_seed(4))
        with torch.no_grad():
            usual, exact = module_logits(rounded, parts, tokens), module_logits(model, parts.float(), tokens)
        with tempfile.TemporaryDirectory() as scratch:
            numpy.array(tokens[0].tolist(), dtype=numpy.int32).tofile(f"{scratch}/tokens")
            done = subprocess.run([tool, directory, f"{scratch}/tokens", f"{scratch}/out", "portable", str(1 << 20), "auto", "0", "",
                                   f"{scratch}/module"], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr.strip()
            found = numpy.fromfile(f"{scratch}/module", dtype=numpy.float32).reshape(TOKENS - 1, -1)
        error, own = numpy.abs(found - exact).mean(), numpy.abs(usual - exact).mean()
        print(f"{family:17} module: mean error {error:.5f}, transformers in bf16 {own:.5f}{'' if error <= own else '  WRONG'}", flush=True)
        return error <= own


def main():
    arguments = [a for a in sys.argv[1:] if a != "--control"]
    control = "--control" in sys.argv
    tool, names = arguments[0], arguments[1:] or list(CASES)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    wrong = []
    for family in names:
        for number, shape in enumerate(CASES[family]):
            try:
                good = check(tool, family, number, shape, control)
            except AssertionError as error:
                print(f"{family:17} {number}: {error}", flush=True)
                good = False
            if good == control:
                wrong.append(f"{family} {number}")
    wrong += [f"the module of {family}" for family in MODULES if family in names and check_module(tool, family, control) == control]
    if "gpt_oss" in names and check_mxfp4(tool, control) == control:
        wrong.append("gpt_oss in MXFP4")
    print(f"transformers {transformers.__version__}: {'wrong: ' + ', '.join(wrong) if wrong else 'all as expected'}")
    sys.exit(1 if wrong else 0)


main()
