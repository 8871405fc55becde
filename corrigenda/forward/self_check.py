"""A model checks itself when it is taken: forwards with a cache, partial forwards, and a hook at each site.

So a family that is found by inspection, or a new version of transformers, is refused at once and by name where its
parts do something else than is thought. What passed is kept by what it depends on.
"""

import hashlib
import json
import warnings
from contextlib import ExitStack, suppress
from functools import partial

import torch
import transformers
from torch import Tensor

from corrigenda.errors import UnsupportedModelError
from corrigenda.forward.generation import decode, never
from corrigenda.forward.interventions import Apply, Read, intervene
from corrigenda.forward.partial import PartialForward
from corrigenda.forward.recording import forward_logits, record
from corrigenda.models.bare import BareModel
from corrigenda.models.families import name_of
from corrigenda.models.identity import computing_hash
from corrigenda.models.sites import SITES, WITHOUT_LAYER, Site
from corrigenda.prompts import TokenBatch
from corrigenda.system.files import cache_folder, write_json

TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 1e-2}
"""By precision how far two distributions of the next token may be apart (total variation) and count as one."""
N_TOKENS = 7
VERSION = 1
"""Of the check; it changes with what is checked."""

_passed: set[str] = set()


def check_itself(lm: BareModel) -> None:
    """Checks a model once for each class, configuration, precision, kind of device and version of the libraries.

    A causal model answers the same with a cache and without, and from the middle as from the beginning; at each site
    something is read and changed. Of a masked model the sites are checked. Encoder-decoders, offloaded weights, and
    weights that give no numbers are not checked.

    Raises:
        UnsupportedModelError: which check failed, and how.
    """
    parameters = list(lm.model.parameters())
    if lm.parts is not None or any(one.is_meta for one in parameters) or (lm.context_length or N_TOKENS) < N_TOKENS:
        return
    key = _key(lm)
    path = cache_folder() / "families" / f"{key}.json"
    if key in _passed or path.is_file():
        return
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # that all positions run, for one: it is said where it costs
        if not _check(lm):
            return
    _passed.add(key)
    with suppress(OSError):  # a cache that cannot be written costs this check the next time
        write_json(path, {"class": name_of(lm.model), "transformers": transformers.__version__})


def _key(lm: BareModel) -> str:
    parts = (
        *(VERSION, f"{type(lm.model).__module__}.{type(lm.model).__qualname__}", transformers.__version__),
        *(torch.__version__, repr(lm.architecture.family), computing_hash(lm.model.config)),
        *(str(lm.dtype), lm.device.type, lm.model.config._attn_implementation),
    )
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _check(lm: BareModel) -> bool:
    """Runs all checks; False where the weights give no numbers, so that nothing can be said."""
    embedded = int(lm.model.get_input_embeddings().weight.shape[0])
    ids = [(5 + 13 * number) % embedded for number in range(N_TOKENS)]
    batch = lm.batch([ids])
    what = "a plain forward"
    try:
        whole = lm.model(input_ids=batch.input_ids, use_cache=False).logits[0].float()
        if not bool(whole.isfinite().all()):
            return False
        if lm.architecture.goes_on:
            what = "a forward with a cache"
            prompt = record(lm, lm.batch([ids[:4]]), [])
            later = PartialForward(lm, prompt, 0, torch.tensor([4]), torch.tensor([0]), batch).logits()[0]
            _require_same(lm, what, later, whole[4:])
            what = "a partial forward"
            middle = lm.n_layers // 2
            recording = record(lm, batch, [middle])
            inside = PartialForward(lm, recording, middle, torch.tensor([3])).logits()[0]
            _require_same(lm, what, inside, whole[3:])
            what = "generation"
            [says] = decode(lm, [ids[:4]], 2, stop=never)
            # Of two tokens that are all but equally likely either may be said.
            if float(whole[3].max() - whole[3][says[0]]) > 1000 * TOLERANCE.get(lm.dtype, 1e-2):
                raise _refused(lm, "generation says another token than the most likely one of a plain forward")
        what = "a forward with hooks at all sites"
        _require_sites(lm, batch)
    except UnsupportedModelError:
        raise
    except Exception as error:
        said = " ".join(str(error).split())[:150]
        raise _refused(lm, f"{what} fails ({type(error).__name__}: {said})") from error
    return True


def _require_same(lm: BareModel, what: str, found: Tensor, wanted: Tensor) -> None:
    apart = float((found.float().softmax(-1) - wanted.softmax(-1)).abs().sum(-1).max()) / 2
    if not apart <= TOLERANCE.get(lm.dtype, 1e-2):
        raise _refused(lm, f"{what} gives other probabilities than a plain forward (by {apart:.2g})")


def _require_sites(lm: BareModel, batch: TokenBatch) -> None:
    """What is read at each site has the right shape, and what is put in there moves the answer: it has a gradient."""
    middle = lm.n_layers // 2
    known: list[tuple[Site, Tensor]] = []
    for name in SITES:
        if name == "coefficients" and lm.architecture.experts(middle) is not None:
            continue  # each expert has its own
        site = Site(name, None if name in WITHOUT_LAYER else middle)
        with suppress(UnsupportedModelError), intervene(lm, site, Read()):  # else it is refused when asked for
            known.append((site, torch.zeros(1, device=lm.device, dtype=lm.dtype, requires_grad=True)))
    with torch.inference_mode(False), torch.enable_grad(), ExitStack() as stack:
        seen = [stack.enter_context(intervene(lm, site, Read())) for site, _ in known]
        for site, nothing in known:
            stack.enter_context(intervene(lm, site, Apply(partial(_nudged, nothing))))
        logits = forward_logits(lm, batch)
        gradients = torch.autograd.grad(logits.float().square().sum(), [each for _, each in known], allow_unused=True)
    for (site, _), one, gradient in zip(known, seen, gradients, strict=True):
        if one.value.shape[:2] != batch.input_ids.shape:
            raise _refused(lm, f"what is read at the site {site.name!r} has the shape {tuple(one.value.shape)}")
        if gradient is None or not bool(gradient.any()):
            raise _refused(lm, f"a change at the site {site.name!r} changes nothing")


def _nudged(by: Tensor, activation: Tensor) -> Tensor:
    """An activation that is moved by a number in a direction of no pattern, as no norm takes out again."""
    direction = torch.sin(torch.arange(activation.shape[-1], device=activation.device) ** 2 + 1.0)
    return activation + by.to(activation) * direction.to(activation)


def _refused(lm: BareModel, why: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{name_of(lm.model)} is not supported: {why}. If its parts were found wrongly, give their paths as a `Family` "
        "(load(..., family=Family(...)))"
    )
