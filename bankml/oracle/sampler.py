"""The reference's sampler chain, run on rows of logits: what a token must be."""

import ctypes
import os
from ctypes import POINTER, Structure, c_bool, c_char_p, c_float, c_int32, c_int64, c_size_t, c_uint32, c_void_p

import numpy as np

from bankml.errors import BankmlError

LOGIT_BIAS = np.dtype([("token", "<i4"), ("bias", "<f4")])
TOKEN_DATA = np.dtype([("id", "<i4"), ("logit", "<f4"), ("p", "<f4")])
assert TOKEN_DATA.itemsize == 12


class TokenDataArray(Structure):
    """struct llama_token_data_array"""

    _fields_ = [("data", c_void_p), ("size", c_size_t), ("selected", c_int64), ("sorted", c_bool)]


class ChainParams(Structure):
    """struct llama_sampler_chain_params"""

    _fields_ = [("no_perf", c_bool)]


FUNCTIONS = {
    # struct llama_sampler * llama_sampler_chain_init(struct llama_sampler_chain_params params);
    "llama_sampler_chain_init": (c_void_p, ChainParams),
    # void llama_sampler_chain_add(struct llama_sampler * chain, struct llama_sampler * smpl);
    "llama_sampler_chain_add": (None, c_void_p, c_void_p),
    # struct llama_sampler * llama_sampler_init_logit_bias(int32_t n_vocab, int32_t n_logit_bias,
    #     const llama_logit_bias * logit_bias);
    "llama_sampler_init_logit_bias": (c_void_p, c_int32, c_int32, c_void_p),
    # struct llama_sampler * llama_sampler_init_penalties(int32_t n_vocab, int32_t penalty_last_n, float penalty_repeat,
    #     float penalty_freq, float penalty_present);
    "llama_sampler_init_penalties": (c_void_p, c_int32, c_int32, c_float, c_float, c_float),
    # struct llama_sampler * llama_sampler_init_dry(const struct llama_vocab * vocab, float dry_multiplier,
    #     float dry_base, int32_t dry_allowed_length, int32_t dry_penalty_last_n, const char ** seq_breakers,
    #     size_t num_breakers);
    "llama_sampler_init_dry": (c_void_p, c_void_p, c_float, c_float, c_int32, c_int32, POINTER(c_char_p), c_size_t),
    # struct llama_sampler * llama_sampler_init_top_n_sigma(float n);
    "llama_sampler_init_top_n_sigma": (c_void_p, c_float),
    # struct llama_sampler * llama_sampler_init_typical(float p, size_t min_keep);
    "llama_sampler_init_typical": (c_void_p, c_float, c_size_t),
    # struct llama_sampler * llama_sampler_init_xtc(float p, float t, size_t min_keep, uint32_t seed);
    "llama_sampler_init_xtc": (c_void_p, c_float, c_float, c_size_t, c_uint32),
    # struct llama_sampler * llama_sampler_init_top_k(int32_t k);
    "llama_sampler_init_top_k": (c_void_p, c_int32),
    # struct llama_sampler * llama_sampler_init_top_p(float p, size_t min_keep);
    "llama_sampler_init_top_p": (c_void_p, c_float, c_size_t),
    # struct llama_sampler * llama_sampler_init_min_p(float p, size_t min_keep);
    "llama_sampler_init_min_p": (c_void_p, c_float, c_size_t),
    # struct llama_sampler * llama_sampler_init_temp_ext(float t, float delta, float exponent);
    "llama_sampler_init_temp_ext": (c_void_p, c_float, c_float, c_float),
    # struct llama_sampler * llama_sampler_init_dist(uint32_t seed);
    "llama_sampler_init_dist": (c_void_p, c_uint32),
    # void llama_sampler_apply(struct llama_sampler * smpl, llama_token_data_array * cur_p);
    "llama_sampler_apply": (None, c_void_p, POINTER(TokenDataArray)),
    # void llama_sampler_accept(struct llama_sampler * smpl, llama_token token);
    "llama_sampler_accept": (None, c_void_p, c_int32),
    # void llama_sampler_free(struct llama_sampler * smpl);
    "llama_sampler_free": (None, c_void_p),
}


INITS = tuple(name.removeprefix("llama_sampler_init_") for name in FUNCTIONS if "_init_" in name)
CHAIN = ("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature")  # the server's
DEFAULTS = {
    "repeat_penalty": 1.0, "repeat_last_n": 64, "presence_penalty": 0.0, "frequency_penalty": 0.0,
    "dry_multiplier": 0.0, "dry_base": 1.75, "dry_allowed_length": 2, "dry_penalty_last_n": 64,
    "dry_sequence_breakers": ("\n", ":", '"', "*"), "top_n_sigma": -1.0, "typical_p": 1.0, "xtc_probability": 0.0,
    "xtc_threshold": 0.1, "dynatemp_range": 0.0, "dynatemp_exponent": 1.0, "min_keep": 0, "logit_bias": (),
}  # fmt: skip


class ReferenceVocab:
    """The vocabulary of a GGUF as the reference holds it, for DRY's breakers. Use in a `with` block."""

    def __init__(self, reference, path):
        self._api = reference.api
        params = self._api.llama_model_default_params()
        params.vocab_only = True
        self._model = self._api.llama_model_load_from_file(os.fsencode(path), params)
        if not self._model:
            raise BankmlError(f"{path}: the reference does not load this vocabulary")
        self.pointer = self._api.llama_model_get_vocab(self._model)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._api.llama_model_free(self._model)


class ReferenceSampler:
    """llama-server's chain and the draw. Use in a `with` block.

    `reference` is a `library.Reference`; settings have the server's names, those of DEFAULTS may be left out. DRY wants
    a `ReferenceVocab`; `n_vocab` is how many logits a row has, for `logit_bias` and the penalties.
    """

    def __init__(
        self, reference, *, temperature, top_k, top_p, min_p, seed, n_vocab=0, vocab=None, samplers=CHAIN, **more
    ):
        library = ctypes.CDLL(str(reference.paths["llama"]))
        for name, (result, *arguments) in FUNCTIONS.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        self._library = library
        s, make = DEFAULTS | more, {name: getattr(library, f"llama_sampler_init_{name}") for name in INITS}
        assert s.keys() == DEFAULTS.keys(), more
        breakers = [text.encode() for text in s["dry_sequence_breakers"]]
        keep = s["min_keep"]
        steps = {
            "penalties": lambda: make["penalties"](
                n_vocab, s["repeat_last_n"], s["repeat_penalty"], s["frequency_penalty"], s["presence_penalty"]
            ),
            "dry": lambda: make["dry"](
                vocab and vocab.pointer, s["dry_multiplier"], s["dry_base"], s["dry_allowed_length"],
                s["dry_penalty_last_n"], (c_char_p * len(breakers))(*breakers), len(breakers),
            ),
            "top_n_sigma": lambda: make["top_n_sigma"](s["top_n_sigma"]),
            "top_k": lambda: make["top_k"](top_k),
            "typ_p": lambda: make["typical"](s["typical_p"], keep),
            "top_p": lambda: make["top_p"](top_p, keep),
            "min_p": lambda: make["min_p"](min_p, keep),
            "xtc": lambda: make["xtc"](s["xtc_probability"], s["xtc_threshold"], keep, seed),
            "temperature": lambda: make["temp_ext"](temperature, s["dynatemp_range"], s["dynatemp_exponent"]),
        }  # fmt: skip
        bias = np.array([tuple(pair) for pair in s["logit_bias"]], LOGIT_BIAS)
        self._chain = library.llama_sampler_chain_init(ChainParams(True))
        chain = [make["logit_bias"](n_vocab, len(bias), bias.ctypes.data)] if len(bias) else []
        for sampler in (*chain, *(steps[name]() for name in samplers), make["dist"](seed)):
            library.llama_sampler_chain_add(self._chain, sampler)

    def accept(self, tokens):
        """Let the chain see a prompt's tokens."""
        for token in tokens:
            self._library.llama_sampler_accept(self._chain, token)

    def sample(self, logits: np.ndarray) -> int:
        """The token drawn for float32 (n_vocab,) logits; `left` is what the chain left then, a TOKEN_DATA array."""
        data = np.zeros(len(logits), TOKEN_DATA)
        data["id"], data["logit"] = np.arange(len(logits)), logits
        array = TokenDataArray(data.ctypes.data, len(data), -1, False)
        self._library.llama_sampler_apply(self._chain, ctypes.byref(array))
        first = (array.data - data.ctypes.data) // TOKEN_DATA.itemsize
        self.left = data[first : first + array.size]
        token = int(self.left["id"][array.selected])
        self.accept([token])
        return token

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._library.llama_sampler_free(self._chain)
