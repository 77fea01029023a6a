"""libmar for Python: images of prompts and classes from autoregressive models with continuous tokens (MAR, l-DeTok,
Harmon, UniPic-1, NextStep-1, SphereAR) and discrete ones (LlamaGen, Lumina-mGPT, Anole, Emu3).

    import mar
    pipe = mar.load("Harmon-0_5B")                                     # or "demo-harmon", which comes with libmar
    images = pipe("a corgi in the snow", seed=7, num=4)                # a list of PIL images

    pipe = mar.load("mar_base.safetensors", vae="kl16.safetensors")
    image = pipe("golden retriever", cfg=2.9, num_iter=32)             # or 207; options are those of mar generate
    edited = pipe.edit(image, "tabby cat", box=(64, 64, 128, 128))

    session = pipe.session(batch=4, cfg=2.9)                           # requests that come and go, step by step
    request = session.submit(label=207, seed=7)
    while session.pending:
        session.step()
    pixels = session.take(request)

Everything is a thin layer over libmar's headers, which document parameters and guarantees. A call leaves the
interpreter's lock, so that other threads run. Objects free themselves. A session belongs to one thread at a time; only
Session.cancel() without a request may be called from any thread. The library's log goes to logging.getLogger("mar").
"""
from ._core import MarError
from ._judge import (Clip, Features, Method, Text, energy_distance, frechet_distance, kernel_distance, methods,
                     precision_recall)
from ._lib import lib as _library
from ._model import Comparison, Model, load
from ._session import Session

__all__ = ["Clip", "Comparison", "Features", "MarError", "Method", "Model", "Session", "Text", "energy_distance",
           "frechet_distance", "kernel_distance", "load", "methods", "precision_recall", "__version__"]

__version__: str = _library.mar_version().decode()
