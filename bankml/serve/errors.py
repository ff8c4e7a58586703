"""What an endpoint refuses: an HTTP status and one sentence, told in the shape that the client's interface knows."""

from bankml.errors import BankmlError, PromptTooLong

KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    501: "not_supported_error",
    503: "unavailable_error",
}


class ApiError(Exception):
    """status: of HTTP. kind: llama-server's word for it (`error.type`). retry_after: seconds. more: further fields."""

    def __init__(self, status: int, message: str, *, kind=None, retry_after: int | None = None, **more):
        super().__init__(message)
        self.status, self.message, self.more = status, message, more
        self.kind = kind or KINDS.get(status, "invalid_request_error" if status < 500 else "server_error")
        self.headers = {} if retry_after is None else {"Retry-After": str(retry_after)}

    def body(self, ollama=False) -> dict:
        """The JSON object of the reply, as llama-server and OpenAI word it, or as Ollama does."""
        if ollama:
            return {"error": self.message}
        return {"error": {"code": self.status, "message": self.message, "type": self.kind, **self.more}}


def api_error(error: Exception) -> ApiError:
    """What a client is told of an error; one that nobody foresaw is a 500 without its details."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, PromptTooLong):
        counts = {"n_prompt_tokens": error.tokens, "n_ctx": error.n_ctx}
        return ApiError(400, str(error), kind="exceed_context_size_error", **counts)
    if isinstance(error, BankmlError):
        return ApiError(400, str(error))
    if isinstance(error, MemoryError):
        return ApiError(503, "out of memory; a shorter prompt or a smaller context needs less", retry_after=5)
    return ApiError(500, f"an error inside bankml ({type(error).__name__})")


def stopping() -> ApiError:
    """For a request that the server's end leaves without an answer."""
    return ApiError(503, "the server is stopping", retry_after=10)
