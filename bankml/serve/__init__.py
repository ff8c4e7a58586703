"""`bankml serve`: the engine behind HTTP, for clients of OpenAI and llama-server.

`service.py` holds the engine and the queue, `app.py` puts the endpoints together, `limits.py` stands before them; an
interface is a module with `routes(service)`.
"""
