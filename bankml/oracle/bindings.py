"""ctypes bindings of the reference (llama.cpp b11192): each quotes its C declaration; nothing here computes."""

import ctypes
from ctypes import (
    POINTER,
    Structure,
    c_bool,
    c_char,
    c_char_p,
    c_float,
    c_int,
    c_int8,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_void_p,
)
from types import SimpleNamespace

from bankml.errors import UsageError

# enum ggml_type
F32, F16, Q8_0, I32, I64, Q1_0, Q2_0 = 0, 1, 8, 26, 27, 41, 42
# enum ggml_prec: GGML_PREC_F32
PREC_F32 = 10
# enum ggml_op_hint: GGML_HINT_SRC0_IS_HADAMARD
HINT_HADAMARD = 1
# #define GGML_ROPE_TYPE_NORMAL 0, GGML_ROPE_TYPE_NEOX 2
ROPE_NORM, ROPE_NEOX = 0, 2

# typedef void (*ggml_log_callback)(enum ggml_log_level level, const char * text, void * user_data);
LOG_CALLBACK = ctypes.CFUNCTYPE(None, c_int, c_char_p, c_void_p)


class Tensor(Structure):
    """struct ggml_tensor"""


Tensor._fields_ = [
    ("type", c_int),
    ("buffer", c_void_p),
    ("ne", c_int64 * 4),
    ("nb", c_size_t * 4),
    ("op", c_int),
    ("op_params", c_int32 * 16),
    ("flags", c_int32),
    ("src", POINTER(Tensor) * 10),
    ("view_src", POINTER(Tensor)),
    ("view_offs", c_size_t),
    ("data", c_void_p),
    ("name", c_char * 64),
    ("extra", c_void_p),
    ("padding", c_char * 8),
]
TENSOR = POINTER(Tensor)

# typedef bool (*ggml_backend_sched_eval_callback)(struct ggml_tensor * t, bool ask, void * user_data);
EVAL_CALLBACK = ctypes.CFUNCTYPE(c_bool, TENSOR, c_bool, c_void_p)


class InitParams(Structure):
    """struct ggml_init_params"""

    _fields_ = [("mem_size", c_size_t), ("mem_buffer", c_void_p), ("no_alloc", c_bool)]


class Plan(Structure):
    """struct ggml_cplan"""

    _fields_ = [
        ("work_size", c_size_t),
        ("work_data", c_void_p),
        ("n_threads", c_int),
        ("threadpool", c_void_p),
        ("abort_callback", c_void_p),
        ("abort_callback_data", c_void_p),
        ("use_ref", c_bool),
    ]


class Batch(Structure):
    """struct llama_batch"""

    _fields_ = [
        ("n_tokens", c_int32),
        ("token", POINTER(c_int32)),
        ("embd", POINTER(c_float)),
        ("pos", POINTER(c_int32)),
        ("n_seq_id", POINTER(c_int32)),
        ("seq_id", POINTER(POINTER(c_int32))),
        ("logits", POINTER(c_int8)),
    ]


class ModelParams(Structure):
    """struct llama_model_params"""

    _fields_ = [
        ("devices", c_void_p),
        ("tensor_buft_overrides", c_void_p),
        ("n_gpu_layers", c_int32),
        ("split_mode", c_int),
        ("load_mode", c_int),
        ("lazy_mode", c_int),
        ("main_gpu", c_int32),
        ("tensor_split", c_void_p),
        ("progress_callback", c_void_p),
        ("progress_callback_user_data", c_void_p),
        ("kv_overrides", c_void_p),
        ("vocab_only", c_bool),
        ("check_tensors", c_bool),
        ("use_extra_bufts", c_bool),
        ("no_host", c_bool),
        ("no_alloc", c_bool),
        ("load_mtp", c_bool),
    ]


class ContextParams(Structure):
    """struct llama_context_params"""

    _fields_ = [
        ("n_ctx", c_uint32),
        ("n_batch", c_uint32),
        ("n_ubatch", c_uint32),
        ("n_seq_max", c_uint32),
        ("n_rs_seq", c_uint32),
        ("n_outputs_max", c_uint32),
        ("n_outputs_max_per_seq", c_uint32),
        ("n_threads", c_int32),
        ("n_threads_batch", c_int32),
        ("ctx_type", c_int),
        ("rope_scaling_type", c_int),
        ("pooling_type", c_int),
        ("attention_type", c_int),
        ("flash_attn_type", c_int),
        ("rope_freq_base", c_float),
        ("rope_freq_scale", c_float),
        ("yarn_ext_factor", c_float),
        ("yarn_attn_factor", c_float),
        ("yarn_beta_fast", c_float),
        ("yarn_beta_slow", c_float),
        ("yarn_orig_ctx", c_uint32),
        ("defrag_thold", c_float),
        ("cb_eval", EVAL_CALLBACK),
        ("cb_eval_user_data", c_void_p),
        ("type_k", c_int),
        ("type_v", c_int),
        ("abort_callback", c_void_p),
        ("abort_callback_data", c_void_p),
        ("embeddings", c_bool),
        ("offload_kqv", c_bool),
        ("no_perf", c_bool),
        ("op_offload", c_bool),
        ("swa_full", c_bool),
        ("kv_unified", c_bool),
        ("samplers", c_void_p),
        ("n_samplers", c_size_t),
        ("ctx_other", c_void_p),
    ]


class QuantizeParams(Structure):
    """struct llama_model_quantize_params"""

    _fields_ = [
        ("nthread", c_int32),
        ("ftype", c_int),
        ("output_tensor_type", c_int),
        ("token_embedding_type", c_int),
        ("allow_requantize", c_bool),
        ("quantize_output_tensor", c_bool),
        ("only_copy", c_bool),
        ("pure", c_bool),
        ("keep_split", c_bool),
        ("dry_run", c_bool),
        ("imatrix", c_void_p),
        ("kv_overrides", c_void_p),
        ("tt_overrides", c_void_p),
        ("prune_layers", c_void_p),
        ("max_buf_size", c_size_t),
    ]


# A vec_dot: the sum over n values of x (a weight row) times y (an activation row); bs, bx, by and nrc serve row pairs.
_VEC_DOT = (None, c_int, c_void_p, c_size_t, c_void_p, c_size_t, c_void_p, c_size_t, c_int)

# library part -> function -> (result, arguments ...)
FUNCTIONS = {
    "base": {
        # void ggml_fp16_to_fp32_row(const ggml_fp16_t *, float *, int64_t);
        "ggml_fp16_to_fp32_row": (None, c_void_p, c_void_p, c_int64),
        # void ggml_fp32_to_fp16_row(const float *, ggml_fp16_t *, int64_t);
        "ggml_fp32_to_fp16_row": (None, c_void_p, c_void_p, c_int64),
        # struct ggml_context * ggml_init(struct ggml_init_params params);
        "ggml_init": (c_void_p, InitParams),
        # void ggml_free(struct ggml_context * ctx);
        "ggml_free": (None, c_void_p),
        # size_t ggml_nbytes(const struct ggml_tensor * tensor);
        "ggml_nbytes": (c_size_t, TENSOR),
        # size_t ggml_row_size(enum ggml_type type, int64_t ne);
        "ggml_row_size": (c_size_t, c_int, c_int64),
        # struct ggml_tensor * ggml_new_tensor_4d(struct ggml_context * ctx, enum ggml_type type, int64_t ne0,
        #     int64_t ne1, int64_t ne2, int64_t ne3);
        "ggml_new_tensor_4d": (TENSOR, c_void_p, c_int, c_int64, c_int64, c_int64, c_int64),
        # struct ggml_tensor * ggml_permute(struct ggml_context * ctx, struct ggml_tensor * a, int axis0, int axis1,
        #     int axis2, int axis3);
        "ggml_permute": (TENSOR, c_void_p, TENSOR, c_int, c_int, c_int, c_int),
        # struct ggml_tensor * ggml_add(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b);
        "ggml_add": (TENSOR, c_void_p, TENSOR, TENSOR),
        # struct ggml_tensor * ggml_mul(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b);
        "ggml_mul": (TENSOR, c_void_p, TENSOR, TENSOR),
        # struct ggml_tensor * ggml_mul_mat(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b);
        "ggml_mul_mat": (TENSOR, c_void_p, TENSOR, TENSOR),
        # struct ggml_tensor * ggml_get_rows(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b);
        "ggml_get_rows": (TENSOR, c_void_p, TENSOR, TENSOR),
        # struct ggml_tensor * ggml_rms_norm(struct ggml_context * ctx, struct ggml_tensor * a, float eps);
        "ggml_rms_norm": (TENSOR, c_void_p, TENSOR, c_float),
        # struct ggml_tensor * ggml_swiglu_split(struct ggml_context * ctx, struct ggml_tensor * a,
        #     struct ggml_tensor * b);
        "ggml_swiglu_split": (TENSOR, c_void_p, TENSOR, TENSOR),
        # struct ggml_tensor * ggml_rope_ext(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
        #     struct ggml_tensor * c, int n_dims, int mode, int n_ctx_orig, float freq_base, float freq_scale,
        #     float ext_factor, float attn_factor, float beta_fast, float beta_slow);
        "ggml_rope_ext": (TENSOR, c_void_p, TENSOR, TENSOR, TENSOR, c_int, c_int, c_int, *[c_float] * 6),
        # struct ggml_tensor * ggml_flash_attn_ext(struct ggml_context * ctx, struct ggml_tensor * q,
        #     struct ggml_tensor * k, struct ggml_tensor * v, struct ggml_tensor * mask, float scale, float max_bias,
        #     float logit_softcap);
        "ggml_flash_attn_ext": (TENSOR, c_void_p, TENSOR, TENSOR, TENSOR, TENSOR, c_float, c_float, c_float),
        # void ggml_mul_mat_set_hint(struct ggml_tensor * a, enum ggml_op_hint hint);
        "ggml_mul_mat_set_hint": (None, TENSOR, c_int),
        # bool ggml_prec_set_acc(struct ggml_tensor * a, enum ggml_prec prec);
        "ggml_prec_set_acc": (c_bool, TENSOR, c_int),
        # struct ggml_cgraph * ggml_new_graph(struct ggml_context * ctx);
        "ggml_new_graph": (c_void_p, c_void_p),
        # void ggml_build_forward_expand(struct ggml_cgraph * cgraph, struct ggml_tensor * tensor);
        "ggml_build_forward_expand": (None, c_void_p, TENSOR),
        # void ggml_backend_tensor_get(const struct ggml_tensor * tensor, void * data, size_t offset, size_t size);
        "ggml_backend_tensor_get": (None, TENSOR, c_void_p, c_size_t, c_size_t),
        # void ggml_backend_tensor_set(struct ggml_tensor * tensor, const void * data, size_t offset, size_t size);
        "ggml_backend_tensor_set": (None, TENSOR, c_void_p, c_size_t, c_size_t),
    },
    "ggml": {
        # ggml_backend_reg_t ggml_backend_load(const char * path);
        "ggml_backend_load": (c_void_p, c_char_p),
    },
    "cpu": {
        # int ggml_backend_score(void); 0 where the CPU lacks what this build needs
        "ggml_backend_score": (c_int,),
        # void ggml_cpu_init(void);
        "ggml_cpu_init": (None,),
        # void ggml_cpu_fp32_to_fp16(const float *, ggml_fp16_t *, int64_t);
        "ggml_cpu_fp32_to_fp16": (None, c_void_p, c_void_p, c_int64),
        # void ggml_cpu_fp16_to_fp32(const ggml_fp16_t *, float *, int64_t);
        "ggml_cpu_fp16_to_fp32": (None, c_void_p, c_void_p, c_int64),
        # void quantize_row_q8_0(const float * x, void * y, int64_t k);
        "quantize_row_q8_0": (None, c_void_p, c_void_p, c_int64),
        # void quantize_row_q1_0(const float * x, void * y, int64_t k);
        "quantize_row_q1_0": (None, c_void_p, c_void_p, c_int64),
        # void quantize_row_q2_0(const float * x, void * y, int64_t k);
        "quantize_row_q2_0": (None, c_void_p, c_void_p, c_int64),
        # void ggml_vec_dot_q1_0_q8_0(int n, float * s, size_t bs, const void * vx, size_t bx, const void * vy,
        #     size_t by, int nrc); and so the other three
        "ggml_vec_dot_q1_0_q8_0": _VEC_DOT,
        "ggml_vec_dot_q2_0_q8_0": _VEC_DOT,
        "ggml_vec_dot_q8_0_q8_0": _VEC_DOT,
        # void ggml_vec_dot_f16(int n, float * s, size_t bs, ggml_fp16_t * x, size_t bx, ggml_fp16_t * y, size_t by,
        #     int nrc);
        "ggml_vec_dot_f16": _VEC_DOT,
        # struct ggml_cplan ggml_graph_plan(const struct ggml_cgraph * cgraph, int n_threads,
        #     struct ggml_threadpool * threadpool);
        "ggml_graph_plan": (Plan, c_void_p, c_int, c_void_p),
        # enum ggml_status ggml_graph_compute(struct ggml_cgraph * cgraph, struct ggml_cplan * cplan);
        "ggml_graph_compute": (c_int, c_void_p, POINTER(Plan)),
    },
    "llama": {
        # void llama_log_set(ggml_log_callback log_callback, void * user_data);
        "llama_log_set": (None, LOG_CALLBACK, c_void_p),
        # void llama_backend_init(void);
        "llama_backend_init": (None,),
        # struct llama_model_params llama_model_default_params(void);
        "llama_model_default_params": (ModelParams,),
        # struct llama_context_params llama_context_default_params(void);
        "llama_context_default_params": (ContextParams,),
        # struct llama_model_quantize_params llama_model_quantize_default_params(void);
        "llama_model_quantize_default_params": (QuantizeParams,),
        # struct llama_model * llama_model_load_from_file(const char * path_model, struct llama_model_params params);
        "llama_model_load_from_file": (c_void_p, c_char_p, ModelParams),
        # void llama_model_free(struct llama_model * model);
        "llama_model_free": (None, c_void_p),
        # struct llama_context * llama_init_from_model(struct llama_model * model, struct llama_context_params params);
        "llama_init_from_model": (c_void_p, c_void_p, ContextParams),
        # void llama_free(struct llama_context * ctx);
        "llama_free": (None, c_void_p),
        # uint32_t llama_n_ctx(const struct llama_context * ctx);
        "llama_n_ctx": (c_uint32, c_void_p),
        # llama_memory_t llama_get_memory(const struct llama_context * ctx);
        "llama_get_memory": (c_void_p, c_void_p),
        # void llama_memory_clear(llama_memory_t mem, bool data);
        "llama_memory_clear": (None, c_void_p, c_bool),
        # bool llama_memory_seq_rm(llama_memory_t mem, llama_seq_id seq_id, llama_pos p0, llama_pos p1);
        "llama_memory_seq_rm": (c_bool, c_void_p, c_int32, c_int32, c_int32),
        # const struct llama_vocab * llama_model_get_vocab(const struct llama_model * model);
        "llama_model_get_vocab": (c_void_p, c_void_p),
        # int32_t llama_vocab_n_tokens(const struct llama_vocab * vocab);
        "llama_vocab_n_tokens": (c_int32, c_void_p),
        # int32_t llama_model_n_embd(const struct llama_model * model);
        "llama_model_n_embd": (c_int32, c_void_p),
        # int32_t llama_model_n_layer(const struct llama_model * model);
        "llama_model_n_layer": (c_int32, c_void_p),
        # int32_t llama_model_n_ctx_train(const struct llama_model * model);
        "llama_model_n_ctx_train": (c_int32, c_void_p),
        # int32_t llama_decode(struct llama_context * ctx, struct llama_batch batch);
        "llama_decode": (c_int32, c_void_p, Batch),
        # void llama_set_n_threads(struct llama_context * ctx, int32_t n_threads, int32_t n_threads_batch);
        "llama_set_n_threads": (None, c_void_p, c_int32, c_int32),
        # float * llama_get_logits(struct llama_context * ctx);
        "llama_get_logits": (c_void_p, c_void_p),
        # int32_t llama_tokenize(const struct llama_vocab * vocab, const char * text, int32_t text_len,
        #     llama_token * tokens, int32_t n_tokens_max, bool add_special, bool parse_special);
        "llama_tokenize": (c_int32, c_void_p, c_char_p, c_int32, c_void_p, c_int32, c_bool, c_bool),
        # int32_t llama_model_n_head(const struct llama_model * model);
        "llama_model_n_head": (c_int32, c_void_p),
        # int32_t llama_model_n_head_kv(const struct llama_model * model);
        "llama_model_n_head_kv": (c_int32, c_void_p),
        # llama_token llama_vocab_bos(const struct llama_vocab * vocab);
        "llama_vocab_bos": (c_int32, c_void_p),
        # llama_token llama_vocab_eos(const struct llama_vocab * vocab);
        "llama_vocab_eos": (c_int32, c_void_p),
        # bool llama_vocab_get_add_bos(const struct llama_vocab * vocab);
        "llama_vocab_get_add_bos": (c_bool, c_void_p),
        # enum llama_token_attr llama_vocab_get_attr(const struct llama_vocab * vocab, llama_token token);
        "llama_vocab_get_attr": (c_int, c_void_p, c_int32),
        # int32_t llama_token_to_piece(const struct llama_vocab * vocab, llama_token token, char * buf, int32_t length,
        #     int32_t lstrip, bool special);
        "llama_token_to_piece": (c_int32, c_void_p, c_int32, c_char_p, c_int32, c_int32, c_bool),
        # uint32_t llama_model_quantize(const char * fname_inp, const char * fname_out,
        #     const llama_model_quantize_params * params);
        "llama_model_quantize": (c_uint32, c_char_p, c_char_p, POINTER(QuantizeParams)),
    },
}


def bind(handles: dict, paths: dict) -> SimpleNamespace:
    """The functions of FUNCTIONS as attributes, from the loaded libraries (part -> CDLL)."""
    api = SimpleNamespace()
    for part, functions in FUNCTIONS.items():
        for name, (result, *arguments) in functions.items():
            try:
                function = getattr(handles[part], name)
            except AttributeError:
                raise UsageError(f"{paths[part]} has no {name}: it is not the reference, llama.cpp b11192") from None
            function.restype, function.argtypes = result, arguments
            setattr(api, name, function)
    return api


def check_structs(api: SimpleNamespace, path):
    """Refuse a library of another version, whose parameter structs are laid out differently."""
    context, quantize = api.llama_context_default_params(), api.llama_model_quantize_default_params()
    seen = (
        (context.n_ctx, context.n_batch, context.n_ubatch, context.n_seq_max),
        (context.flash_attn_type, context.type_k, context.type_v, context.ctx_other),
        (context.yarn_ext_factor, bool(context.op_offload), bool(context.no_perf)),
        (bool(api.llama_model_default_params().use_extra_bufts), quantize.nthread),
    )
    if seen != ((512, 2048, 512, 1), (-1, F16, F16, None), (-1.0, True, True), (True, 0)):
        raise UsageError(f"{path} is another version of llama.cpp than b11192: its parameters are laid out differently")
