"""The reference's sampler chain, run on rows of logits: what a token must be."""

import ctypes
from ctypes import POINTER, Structure, c_bool, c_float, c_int32, c_int64, c_size_t, c_uint32, c_void_p

import numpy as np

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


class ReferenceSampler:
    """llama-server's chain of the four samplers that have an effect by default, and the draw. Use in a `with` block.

    `reference` is a `library.Reference`; the other arguments are the server's, `min_keep` its 0.
    """

    def __init__(self, reference, *, temperature, top_k, top_p, min_p, seed):
        library = ctypes.CDLL(str(reference.paths["llama"]))
        for name, (result, *arguments) in FUNCTIONS.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        self._library = library
        self._chain = library.llama_sampler_chain_init(ChainParams(True))
        for sampler in (
            library.llama_sampler_init_top_k(top_k),
            library.llama_sampler_init_top_p(top_p, 0),
            library.llama_sampler_init_min_p(min_p, 0),
            library.llama_sampler_init_temp_ext(temperature, 0.0, 1.0),
            library.llama_sampler_init_dist(seed),
        ):
            library.llama_sampler_chain_add(self._chain, sampler)

    def sample(self, logits: np.ndarray) -> int:
        """The token drawn for float32 (n_vocab,) logits."""
        data = np.zeros(len(logits), TOKEN_DATA)
        data["id"], data["logit"] = np.arange(len(logits)), logits
        array = TokenDataArray(data.ctypes.data, len(data), -1, False)
        self._library.llama_sampler_apply(self._chain, ctypes.byref(array))
        token = int(data["id"][array.selected])
        self._library.llama_sampler_accept(self._chain, token)
        return token

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._library.llama_sampler_free(self._chain)
