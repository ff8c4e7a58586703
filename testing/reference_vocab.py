"""The vocabulary of the shipped llama.cpp library through ctypes, for the recorders: no engine code is involved."""

import ctypes
import hashlib
import os
from ctypes import POINTER, c_bool, c_char_p, c_int, c_int32, c_void_p
from pathlib import Path

from bankml.oracle.bindings import ModelParams

LOG_CALLBACK = ctypes.CFUNCTYPE(None, c_int, c_char_p, c_void_p)


def library_folder() -> Path:
    return Path(os.environ["BANKML_REFERENCE"])


def library_stamp() -> dict:
    """What made a recording: the library's name and SHA-256."""
    path = library_folder() / "libllama.v0.5.0.so"
    return {"library": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


class ReferenceVocab:
    """`llama_tokenize`, `llama_token_to_piece` and `llama_vocab_is_eog` over one GGUF, loaded with `vocab_only`."""

    def __init__(self, path):
        folder = library_folder()
        for name in ("libggml-base.so", "libggml.v0.5.0.so"):
            ctypes.CDLL(str(folder / name), ctypes.RTLD_GLOBAL)
        self.lib = lib = ctypes.CDLL(str(folder / "libllama.v0.5.0.so"))
        self._quiet = LOG_CALLBACK(lambda level, text, data: None)
        lib.llama_log_set(self._quiet, None)  # void llama_log_set(ggml_log_callback log_callback, void * user_data);
        # struct llama_model_params llama_model_default_params(void);
        lib.llama_model_default_params.restype = ModelParams
        # struct llama_model * llama_model_load_from_file(const char * path_model, struct llama_model_params params);
        lib.llama_model_load_from_file.argtypes = [c_char_p, ModelParams]
        lib.llama_model_load_from_file.restype = c_void_p
        # const struct llama_vocab * llama_model_get_vocab(const struct llama_model * model);
        lib.llama_model_get_vocab.argtypes = [c_void_p]
        lib.llama_model_get_vocab.restype = c_void_p
        # int32_t llama_tokenize(const struct llama_vocab * vocab, const char * text, int32_t text_len,
        #     llama_token * tokens, int32_t n_tokens_max, bool add_special, bool parse_special);
        lib.llama_tokenize.argtypes = [c_void_p, c_char_p, c_int32, POINTER(c_int32), c_int32, c_bool, c_bool]
        # int32_t llama_token_to_piece(const struct llama_vocab * vocab, llama_token token,
        #     char * buf, int32_t length, int32_t lstrip, bool special);
        lib.llama_token_to_piece.argtypes = [c_void_p, c_int32, c_char_p, c_int32, c_int32, c_bool]
        lib.llama_vocab_is_eog.argtypes = [c_void_p, c_int32]
        lib.llama_vocab_is_eog.restype = c_bool
        lib.llama_vocab_get_add_bos.argtypes = [c_void_p]
        lib.llama_vocab_get_add_bos.restype = c_bool
        for name in ("n_tokens", "bos", "eos"):
            getattr(lib, f"llama_vocab_{name}").argtypes = [c_void_p]
        params = lib.llama_model_default_params()
        params.vocab_only = True
        self.model = lib.llama_model_load_from_file(os.fsencode(path), params)
        if not self.model:
            raise RuntimeError(f"the reference does not load {path}")
        self.vocab = lib.llama_model_get_vocab(self.model)
        self.n_tokens = lib.llama_vocab_n_tokens(self.vocab)
        self._ids = (c_int32 * 4096)()

    def tokenize(self, text: bytes, parse_special=True, add_special=False) -> list[int]:
        call = self.lib.llama_tokenize
        n = call(self.vocab, text, len(text), self._ids, len(self._ids), add_special, parse_special)
        if n < 0:
            self._ids = (c_int32 * -n)()
            n = call(self.vocab, text, len(text), self._ids, len(self._ids), add_special, parse_special)
        return self._ids[:n]

    def piece(self, token: int, special=True) -> bytes:
        buffer = ctypes.create_string_buffer(1024)
        n = self.lib.llama_token_to_piece(self.vocab, token, buffer, len(buffer), 0, special)
        if n < 0:
            buffer = ctypes.create_string_buffer(-n)
            n = self.lib.llama_token_to_piece(self.vocab, token, buffer, len(buffer), 0, special)
        return buffer.raw[:n]

    def eog(self) -> list[int]:
        return [token for token in range(self.n_tokens) if self.lib.llama_vocab_is_eog(self.vocab, token)]

    def ends(self) -> dict:
        """bos, eos, add_bos as the library holds them (-1: none)."""
        lib = self.lib
        return {
            "bos": lib.llama_vocab_bos(self.vocab),
            "eos": lib.llama_vocab_eos(self.vocab),
            "add_bos": lib.llama_vocab_get_add_bos(self.vocab),
        }
